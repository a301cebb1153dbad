-- held: why a message can't be changed by who received it for the `receipt`-th time; nil if it can.
-- needs: messages attributes
local function refusal(id, receipt)
  if not redis.call('ZSCORE', messages, id) then return 'absent' end
  if receipt ~= '' and (redis.call('HGET', attributes, id .. ':rc') or '0') ~= receipt then return 'stale' end
end
