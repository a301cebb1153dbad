-- accept: write the messages with new mids, all together; return the messages that are already live.
-- needs: messages options backoffs ready due left_ready any take_over wake_up not_plain plain_before
-- own: lock length and dedupe backoff, joined by a comma; ',' if a message has neither
local function write_options(mids, own)
  if own == ',' or not mids[1] then return end
  local fields = {}
  for i, mid in ipairs(mids) do fields[2 * i - 1], fields[2 * i] = mid, own end
  not_plain()
  redis.call('HSET', options, unpack(fields))
  any.options, any.sides = true, true
end

-- One at a time: a single message, or if live contents are too long to read only to see that they exist.
local function write_each(batch, again)
  local new = {}
  for i = 1, #batch, 2 do
    local is_new = redis.call('HSETNX', messages, batch[i], batch[i + 1]) == 1
    if is_new then new[#new + 1] = batch[i] else again[i] = true end
  end
  return new
end

local function without(again, batch)
  local fields = {}
  for i = 1, #batch, 2 do
    if not again[i] then fields[#fields + 1], fields[#fields + 2] = batch[i], batch[i + 1] end
  end
  return fields
end

-- before_writing: called if some are live
local function write_together(batch, again, before_writing)
  local mids, seen, new, n = {}, {}, {}, 0
  for k = 1, #batch / 2 do mids[k] = batch[2 * k - 1] end
  local contents = redis.call('HMGET', messages, unpack(mids))
  for k = 1, #mids do
    local mid = mids[k]
    if contents[k] or seen[mid] then
      again[2 * k - 1] = true
    else
      n = n + 1
      seen[mid], new[n] = true, mid
    end
  end
  if n < #mids and before_writing then before_writing() end
  if n > 0 then redis.call('HSET', messages, unpack(n == #mids and batch or without(again, batch))) end
  return new
end

local function put_ready(mids)
  local fresh = any.left_ready and take_over(left_ready, mids) or mids
  if fresh[1] then redis.call('RPUSH', ready, unpack(fresh)) end
  wake_up()
end

-- at: an epoch ms for all, or a table with one for each mid
local function put_due(mids, at)
  local score, by_mid, by_score, new = type(at) == 'number' and string.format('%d', at), {}, {}, {}
  if score then plain_before(at) end
  for i, mid in ipairs(mids) do
    if type(at) == 'table' then
      plain_before(at[mid])
      score = string.format('%d', at[mid])
    end
    new[mid] = true
    by_mid[2 * i - 1], by_mid[2 * i] = mid, score
    by_score[2 * i - 1], by_score[2 * i] = score, mid
  end
  redis.call('HSET', backoffs, unpack(by_mid))
  redis.call('ZADD', due, unpack(by_score))
  if new[redis.call('ZRANGE', due, '0', '0')[1]] then wake_up() end
end
