-- notes: copies that were left in a list and noted as stale.
-- needs:
-- The mids come back to a list: copies recorded as stale are valid again. -> mids without a copy
local function take_over(notes, mids)
  local noted, back, fresh = redis.call('SMISMEMBER', notes, unpack(mids)), {}, {}
  for i, mid in ipairs(mids) do
    if noted[i] == 1 then back[#back + 1] = mid else fresh[#fresh + 1] = mid end
  end
  if back[1] then redis.call('SREM', notes, unpack(back)) end
  return fresh
end
