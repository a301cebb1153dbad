-- cursor: the state of a group: the last index handed out, whether it is paused, its out-of-range rule.
-- needs: group
local cursor, paused, out_of_range, skipped_before = unpack(
  redis.call('HMGET', group, 'cursor', 'paused', 'out_of_range', 'skipped'))
cursor = tonumber(cursor)
if cursor and not (cursor >= 0 and cursor <= 9007199254740000 and cursor % 1 == 0) then cursor = nil end
