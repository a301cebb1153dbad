-- plain: the call of a worker with plain jobs: only plain successes end, and messages are identified by their content
-- alone. It reads all values before its first write. It declares no function, which would cost as much as two commands,
-- so it comes last in its script, and returns the script's reply.
-- needs: messages locks tokens ready due circle done eoq_backoff ndry_runs wake meta events last_call caller number now lease_ms limit
-- The first ending in ARGV: four arguments each, each mid once. Without any it is a dequeue.
local FIRST, argv, count = 6, ARGV, (#ARGV - 5) / 4
if #KEYS ~= 13 or count < 0 or count > 1000 or count % 1 ~= 0 then return {'general'} end
if not string.find(caller .. ' ' .. number .. ' ' .. now .. ' ' .. lease_ms .. ' ' .. limit, '^[!-~]+ [1-9]%d* %d* %d+ %d+$')
  or #caller > 64 or #number > 14 or #now > 14 or #lease_ms > 8 or #limit > 4 then return {'general'} end
local wanted, lease = limit + 0, lease_ms + 0
if wanted > 1000 or (wanted == 0 and count == 0) or lease < 1 or lease > 86400000 then return {'general'} end
local ended, part
if count == 1 then
  ended, part = {argv[FIRST]}, {[argv[FIRST]] = 'ended'}
  local age_ms = argv[FIRST + 2]
  if #argv[FIRST + 3] > 65536 or (age_ms ~= '0' and (#age_ms > 12 or not string.find(age_ms, '^%d+$'))) then return {'general'} end
else
  ended, part = {}, {}
  for i = 1, count do
    local at = FIRST + 4 * (i - 1)
    local mid, age_ms = argv[at], argv[at + 2]
    if #argv[at + 3] > 65536 or part[mid]
      or (age_ms ~= '0' and (#age_ms > 12 or not string.find(age_ms, '^%d+$'))) then return {'general'} end
    ended[i], part[mid] = mid, 'ended'
  end
end
-- A key of another type reads as a missing key here. These three are only replaced or deleted.
local kept = redis.call('MGET', last_call, eoq_backoff, ndry_runs)
local before, rest, dry = kept[1], kept[2], kept[3]
local facts = redis.call('HMGET', meta, 'events', 'floor', 'max_lease', 'maxlen', 'fence', 'max_content', 'walked', 'plain_until')
local floor, fence, plain_until = tonumber(facts[2] or 0), tonumber(facts[5] or 0), tonumber(facts[8])
local max_lease = facts[3] == lease_ms and lease or tonumber(facts[3] or 0)
if not plain_until or plain_until > 253402300799999 or not (floor and max_lease and fence) or not (max_lease >= 0 and max_lease <= 86400000)
  or not (fence >= 0 and fence <= 9e15 and fence % 1 == 0) then return {'general'} end
-- These numbers have no zeros in front, so they are compared as texts.
if before then
  local last = string.match(before, '^%d+')
  if not last or #number < #last or (#number == #last and number <= last) then return {'general'} end
end
local now_ms = now ~= '' and now + 0
if not now_ms then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
if not (floor >= 0 and floor <= now_ms and now_ms < plain_until) then return {'general'} end

local sleep_ms, from, due_at, mids, nmids, more = 0, 0, nil, nil, 0, false
if wanted > 0 then
  local till = rest and tonumber(rest)
  if till and till > now_ms then sleep_ms = till - now_ms end
  if sleep_ms > 30000 then return {'general'} end
  mids = redis.call('LRANGE', ready, '0', limit)
  nmids = #mids
  if sleep_ms > 0 then
    if count == 0 then return {'plain', sleep_ms, 0} end
    nmids = 0
  elseif nmids > wanted then
    more, mids[nmids], nmids = true, nil, wanted
  end
end
local looks, contents = wanted > 0 and sleep_ms == 0, nil
if nmids > 1 and not (nmids * (tonumber(facts[6]) or 1e15) <= 4194304) then return {'general'} end
if nmids == 1 then
  local mid = mids[1]
  contents = redis.call('HGET', messages, mid)
  if not contents or part[mid] or #mid > 512 or string.find(mid, '[^ -~]') then return {'general'} end
  part[mid] = 'handed'
elseif nmids > 0 then
  contents = redis.call('HMGET', messages, unpack(mids))
  for i = 1, nmids do
    local mid = mids[i]
    if not contents[i] or part[mid] or #mid > 512 then return {'general'} end
    part[mid] = 'handed'
  end
  if string.find(table.concat(mids), '[^ -~]') then return {'general'} end
else
  redis.call('HLEN', messages)
end
if count == 1 then
  if redis.call('HGET', tokens, ended[1]) ~= argv[FIRST + 1] then return {'general'} end
elseif count > 0 then
  local held = redis.call('HMGET', tokens, unpack(ended))
  for i = 1, count do
    if held[i] ~= argv[FIRST + 4 * i - 3] then return {'general'} end
  end
else
  redis.call('HLEN', tokens)
end

-- The part of the circle to check, as seldom as hand_out does: finished mids are removed, held mids move on.
local since, n, back, nback = now_ms - (tonumber(facts[7]) or 0), 0, nil, 0
local walks = looks and (nmids == 0 or fence % 50 + nmids >= 50 or not (since >= 0 and since < 100)
  or (fence % 10 + nmids >= 10 and redis.call('LLEN', circle) > 1000))
-- A single message moves from ready to the circle in one command. As the first write it checks the circle's type.
local moves = nmids == 1 and not walks
local collected, ncollected, forgotten, nforgotten, left, is_walked = nil, 0, nil, 0, count, nil
if walks then
  local walked, longest = redis.call('LRANGE', circle, '0', '99'), now_ms + max_lease
  n, back, collected, forgotten, is_walked = #walked, {}, {}, {}, {}
  if n > 0 then
    local finished, expiries = redis.call('SMISMEMBER', done, unpack(walked)), redis.call('HMGET', locks, unpack(walked))
    for i = 1, n do
      local mid, expiry, its_part = walked[i], tonumber(expiries[i]), part[walked[i]]
      if its_part == 'handed' then return {'general'} end
      if its_part or finished[i] == 1 then
        ncollected = ncollected + 1
        collected[ncollected] = mid
        if finished[i] == 1 then
          nforgotten = nforgotten + 1
          forgotten[nforgotten] = mid
        end
        if its_part and not is_walked[mid] then is_walked[mid], left = true, left - 1 end
      elseif expiry and expiry > now_ms and expiry <= longest then
        nback = nback + 1
        back[nback] = mid
      else
        return {'general'}
      end
    end
  else
    redis.call('SCARD', done)
    redis.call('HLEN', locks)
  end
else
  if not moves then redis.call('LLEN', circle) end
  redis.call('SCARD', done)
  if count == 0 then redis.call('HLEN', locks) end
end
local rests, runs, length = looks and nmids == 0, 0, nback
if rests then
  runs = tonumber(dry or 0)
  if n == 100 then length = redis.call('LLEN', circle) - n + length end
  due_at = tonumber(redis.call('ZRANGE', due, '0', '0', 'WITHSCORES')[2])
  if due_at and not (due_at > now_ms and due_at % 1 == 0) then return {'general'} end
end
if not (runs and runs >= 0 and runs <= 100 and runs % 1 == 0) then return {'general'} end
local nwake = more and redis.call('LLEN', wake) or 0

if moves then redis.call('LMOVE', ready, circle, 'LEFT', 'RIGHT') end
local now_text = string.format('%d', now_ms)
if count > 0 then
  -- Where locks has another type, the only write so far is undone.
  local freed = redis.pcall('HDEL', locks, unpack(ended))
  if type(freed) == 'table' then
    if moves then redis.call('LMOVE', circle, ready, 'RIGHT', 'LEFT') end
    return freed
  end
  redis.call('HDEL', tokens, unpack(ended))
  if left == count then
    redis.call('SADD', done, unpack(ended))
  elseif left > 0 then
    local unseen = {}
    for i = 1, count do
      if not is_walked[ended[i]] then unseen[#unseen + 1] = ended[i] end
    end
    redis.call('SADD', done, unpack(unseen))
  end
  if facts[1] ~= 'off' then
    local trims, last_age, at_text = walks or wanted == 0, nil, nil
    for i = 1, count do
      local at = FIRST + 4 * (i - 1)
      local age_ms = argv[at + 2]
      if age_ms ~= last_age then last_age, at_text = age_ms, age_ms == '0' and now_text or string.format('%d', now_ms - age_ms) end
      local text = 'done\31' .. ended[i] .. '\31' .. at_text .. '\31' .. argv[at + 3]
      if trims and i % 100 == 1 then
        local maxlen = facts[4]
        if not maxlen or #maxlen > 10 or not string.find(maxlen, '^%d+$') then maxlen = '100000' end
        redis.pcall('XADD', events, 'MAXLEN', '~', maxlen, '*', '1', text)
      else
        redis.pcall('XADD', events, '*', '1', text)
      end
    end
  end
end
if n > 0 then redis.call('LTRIM', circle, string.format('%d', n), '-1') end
if ncollected > 0 then
  redis.call('HDEL', messages, unpack(collected))
  if nforgotten > 0 then redis.call('SREM', done, unpack(forgotten)) end
end
local until_ms, until_text, from_text = now_ms + lease, wanted > 0 and string.format('%d', now_ms + lease), '0'
if nmids > 0 then
  local fence_text = string.format('%d', fence + nmids)
  from = fence + 1
  if nmids == 1 then
    if walks then redis.call('LPOP', ready) end
    redis.call('HSET', locks, mids[1], until_text)
    redis.call('HSET', tokens, mids[1], caller .. '.' .. number .. '.0')
    from_text = fence_text
  else
    local stem = caller .. '.' .. number .. '.'
    from_text = string.format('%d', from)
    redis.call('LTRIM', ready, string.format('%d', nmids), '-1')
    -- Growing a table and converting numbers to text are expensive: up to four messages have their places in the table
    -- from the start, and the text of an index is joined from digits.
    local pairs_of = {mids[1], until_text, mids[2], until_text, mids[3], until_text, mids[4], until_text}
    for i = 5, nmids do pairs_of[2 * i - 1], pairs_of[2 * i] = mids[i], until_text end
    redis.call('HSET', locks, unpack(pairs_of, 1, 2 * nmids))
    local digits = {'1', '2', '3', '4', '5', '6', '7', '8', '9', [0] = '0'}
    for i = 1, nmids do
      local index = i - 1
      pairs_of[2 * i] = index < 10 and stem .. digits[index]
        or index < 100 and stem .. digits[(index - index % 10) / 10] .. digits[index % 10] or stem .. index
    end
    redis.call('HSET', tokens, unpack(pairs_of, 1, 2 * nmids))
  end
  if walks then
    redis.call('HSET', meta, 'floor', now_text, 'fence', fence_text, 'walked', now_text)
  else
    redis.call('HSET', meta, 'floor', now_text, 'fence', fence_text)
  end
  if lease > max_lease then redis.call('HSET', meta, 'max_lease', lease_ms) end
  if more and rest then redis.call('DEL', eoq_backoff, ndry_runs) elseif dry then redis.call('DEL', ndry_runs) end
  if more and nwake == 0 then redis.call('LPUSH', wake, '1') end
  if walks then
    for i = 1, nmids do back[nback + i] = mids[i] end
  elseif not moves then
    back = mids
  end
elseif walks then
  redis.call('HSET', meta, 'floor', now_text, 'walked', now_text)
elseif floor < now_ms then
  redis.call('HSET', meta, 'floor', now_text)
end
if back and back[1] then redis.call('RPUSH', circle, unpack(back)) end
if rests then
  runs = math.min(12, runs + 1)
  sleep_ms = math.min(length > 0 and math.max(50, math.floor(2000 * math.min(1, 100 / length))) or 30000, 10 * 2 ^ runs)
  if due_at then
    from = math.max(1, due_at - now_ms)
    sleep_ms = math.min(sleep_ms, from)
  end
  redis.call('SET', ndry_runs, runs, 'PX', '60000')
  redis.call('SET', eoq_backoff, now_ms + sleep_ms, 'PX', sleep_ms)
end
if count == 1 and nmids == 1 then
  redis.call('SET', last_call, number .. '\30ok\0300\0310\31' .. from_text .. '\31' .. until_text .. '\31' .. mids[1], 'PX', '600000')
  return {'plain', 0, from, until_ms, mids[1], contents}
end
local record = number .. '\30' .. (count > 0 and 'ok' .. string.rep('\31ok', count - 1) or '') .. '\30'
if wanted == 0 then
  redis.call('SET', last_call, record, 'PX', '600000')
  return {'plain'}
end
if nmids > 0 then
  redis.call('SET', last_call, record .. '0\0310\31' .. from_text .. '\31' .. until_text .. '\31' .. (nmids == 1 and mids[1] or table.concat(mids, '\31')), 'PX', '600000')
  return {'plain', 0, from, until_ms, nmids == 1 and mids[1] or mids, contents}
end
redis.call('SET', last_call, record .. string.format('%d\0310\31%d\31', sleep_ms, from) .. until_text, 'PX', '600000')
return {'plain', sleep_ms, from}
