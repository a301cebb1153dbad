-- handout: hides the messages that were looked up, and counts that they were received.
-- needs: messages attributes now_ms now_text vt vt_text whole_part added totalrecv_text reply ids first_time taken
local scored, marks, behind = {}, {}, #reply - 4 * taken
local visible_at = string.format('%.0f', now_ms + 1000 * (vt or whole_part(vt_text, 30)))
for i = 1, taken do
  local id, m = ids[i], #marks
  scored[2 * i - 1], scored[2 * i] = visible_at, id
  marks[m + 1], marks[m + 2] = id .. ':rc', reply[behind + 4 * i - 1]
  if first_time[i] then marks[m + 3], marks[m + 4] = id .. ':fr', now_text end
end
redis.call('ZADD', messages, unpack(scored))
redis.call('HSET', attributes, 'totalrecv', added(totalrecv_text, taken), unpack(marks))
