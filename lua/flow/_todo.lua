-- todo: the items to send, and the reply with them. Items stay until they were sent.
-- needs: todo steps calls text
-- The flow's parent, and its sub-flows whose steps have not begun.
local PARENT, SUBS = '^', '%'

local function to_do(flow, name, kind)
  flow.stamp = flow.stamp + 1
  redis.call('HSET', todo, name, kind .. ',' .. text(flow.stamp) .. ',0')
end

local function todo_of(name) return string.match(redis.call('HGET', todo, name) or '', '^%l+') end

-- Number of items to send; without reports to other flows once this flow is over.
local function still_to_do()
  return redis.call('HLEN', todo) - redis.call('HEXISTS', todo, PARENT) - redis.call('HEXISTS', todo, SUBS)
end

local function first_todo(limit)
  local entries, cursor = {}, '0'
  repeat
    local reply = redis.call('HSCAN', todo, cursor, 'COUNT', 128)
    cursor = reply[1]
    for i = 1, #reply[2], 2 do
      local kind, stamp, answered = string.match(reply[2][i + 1], '^(%l+),(%d+),(%d)$')
      if kind then entries[#entries + 1] = {reply[2][i], kind, tonumber(stamp), answered} end
    end
  until cursor == '0' or #entries >= limit
  table.sort(entries, function(entry, other) return entry[3] < other[3] end)
  return entries
end

-- The reply: state, number of rejected entries, whether there are more items, the run id, and nine values per item.
local function answer(flow, refused, limit)
  local reply = {flow.state, refused, 0, flow.run}
  if redis.call('HLEN', todo) == 0 then return reply end
  local entries, bytes = first_todo(limit), 0
  for i, entry in ipairs(entries) do
    if i > limit or bytes > 1048576 then
      reply[3] = 1
      break
    end
    local name, kind, stamp, answered = unpack(entry)
    if answered == '0' then redis.call('HSET', todo, name, kind .. ',' .. text(stamp) .. ',1') end
    local item = {name, kind, text(stamp), answered, '', '', '', '', ''}
    if name == PARENT then
      item[7], item[8] = flow.parent, flow.state
    elseif name == SUBS then
      item[8] = flow.state
    else
      local row = redis.call('HGET', steps, name) or ''
      local step_kind, queue, source, _, options = string.match(row, '^(%l+)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31(.*)$')
      item[5], item[6], item[7], item[8] = step_kind or '', queue or '', source or '', options or ''
      item[9] = redis.call('HGET', calls, name) or ''
    end
    for _, value in ipairs(item) do
      reply[#reply + 1] = value
      bytes = bytes + #value
    end
  end
  if redis.call('HLEN', todo) > (#reply - 4) / 9 then reply[3] = 1 end
  return reply
end
