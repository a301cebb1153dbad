-- held: why the client that received a message for the `receipt`-th time can't change it; nil if it can.
-- needs: messages attributes
local function refusal(id, receipt)
  if not redis.call('ZSCORE', messages, id) then return 'absent' end
  if receipt ~= '' and (redis.call('HGET', attributes, id .. ':rc') or '0') ~= receipt then return 'stale' end
end
