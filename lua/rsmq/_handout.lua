-- handout: hides the messages that were found, and counts that they were received.
-- needs: messages attributes added now_ms totalrecv_text vt_text whole_part
-- `reply` ends with four items for each of `visible`; vt: how long to hide them, s; by default the queue's setting.
local function hide(visible, reply, vt)
  local scored, marks, behind = {}, {}, #reply - 4 * #visible.ids
  local visible_at, now_text = string.format('%.0f', now_ms + 1000 * (vt or whole_part(vt_text, 30))), string.format('%.0f', now_ms)
  for i, id in ipairs(visible.ids) do
    local m = #marks
    scored[2 * i - 1], scored[2 * i] = visible_at, id
    marks[m + 1], marks[m + 2] = id .. ':rc', reply[behind + 4 * i - 1]
    if visible.first_time[i] then marks[m + 3], marks[m + 4] = id .. ':fr', now_text end
  end
  redis.call('ZADD', messages, unpack(scored))
  redis.call('HSET', attributes, 'totalrecv', added(totalrecv_text, #visible.ids), unpack(marks))
end
