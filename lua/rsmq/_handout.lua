-- handout: hides what was looked up and adds id, body, times received, first received at of each to the reply.
-- needs: messages attributes now_ms vt vt_text whole count reply ids bodies received first_at taken
local function hand_out()
  local visible_at, now_text = now_ms + 1000 * (tonumber(vt) or whole(vt_text, 30)), string.format('%.0f', now_ms)
  local scored, fields = {}, {}
  for i, id in ipairs(ids) do
    scored[2 * i - 1], scored[2 * i] = visible_at, id
    local f, n = #fields, #reply
    fields[f + 1], fields[f + 2] = id .. ':rc', received[i] + 1
    if received[i] == 0 then
      first_at[i] = now_text
      fields[f + 3], fields[f + 4] = id .. ':fr', now_text
    end
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, bodies[i], received[i] + 1, first_at[i]
  end
  redis.call('ZADD', messages, unpack(scored))
  redis.call('HSET', attributes, unpack(fields))
  count('totalrecv', taken)
end
