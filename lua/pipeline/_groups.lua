-- groups: accept messages group by group; those of one group have one time before which nobody gets them.
-- A batch is 8 digits, the length of its head; the head, MessagePack of {{when, mid, size, mid, size, …}, …}; and the
-- contents one after the other, of these sizes. (cmsgpack doesn't read bytes that are no text.)
-- needs: accept not_before level emit now_ms max_content meta
local nadded, npresent = 0, 0

-- 'd500': in half a second, 'a1700000000000': then, '': now
local function time_of(when)
  local number = tonumber(string.sub(when, 2))
  return string.sub(when, 1, 1) == 'd' and now_ms + number or number
end

local function accept_groups(batch)
  local longest, place = max_content, 9 + tonumber(string.sub(batch, 1, 8))
  for _, group in ipairs(cmsgpack.unpack(string.sub(batch, 9, place - 1))) do
    not_before = time_of(table.remove(group, 1))
    for i = 2, #group, 2 do
      local size = group[i]
      group[i], place = string.sub(batch, place, place + size - 1), place + size
    end
    local lives = accept(group)
    for i = 1, #group, 2 do
      if lives[i] then
        npresent = npresent + 1
      else
        nadded, longest = nadded + 1, math.max(longest, #group[i + 1])
        if level == 'all' then emit('enqueued', group[i], now_ms, '\31\31\31\31\31\31\31added') end
      end
    end
  end
  if longest > max_content then redis.call('HSET', meta, 'max_content', longest) end
  return {'ok', tostring(nadded), tostring(npresent)}
end
