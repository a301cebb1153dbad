-- handout: hides what was looked up and adds id, body, times received, first received at of each to the reply.
-- needs: messages attributes now_ms now_text vt vt_text whole added totalrecv_text reply ids bodies received first_at taken
local scored, marks = {}, {}
local visible_at = string.format('%.0f', now_ms + 1000 * (tonumber(vt) or whole(vt_text, 30)))
for i, id in ipairs(ids) do
  local m, n = #marks, #reply
  scored[2 * i - 1], scored[2 * i] = visible_at, id
  marks[m + 1], marks[m + 2] = id .. ':rc', received[i] + 1
  if received[i] == 0 then
    first_at[i] = now_text
    marks[m + 3], marks[m + 4] = id .. ':fr', now_text
  end
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, bodies[i], received[i] + 1, first_at[i]
end
redis.call('ZADD', messages, unpack(scored))
redis.call('HSET', attributes, 'totalrecv', added(totalrecv_text, taken), unpack(marks))
