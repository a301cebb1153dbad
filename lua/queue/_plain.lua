-- plain: the call of a worker with plain jobs: only plain successes end, and messages are identified by their content
-- alone. It reads all values before its first write, and creates only this function.
-- needs: messages locks tokens ready due circle done eoq_backoff ndry_runs wake meta events last_call
-- FIRST: the first ending in ARGV, four arguments each, each mid once; reply: prefix of its reply, {'handed'} for a dequeue
-- -> the reply; nil where the call isn't plain: then nothing is written, and the script that takes every call has to be sent
local FIRST = 6
local function plain_call(reply, count, caller, number, now, lease_ms, limit)
  local argv = ARGV
  local wanted, lease, call = tonumber(limit), tonumber(lease_ms), tonumber(number)
  if string.find(number .. now .. lease_ms .. limit, '%D') or number < '1' or #number > 14 or #now > 14
    or not (wanted and lease) or wanted > 1000 or lease < 1 or lease > 86400000
    or #caller > 64 or not string.find(caller, '^[!-~]+$') then return end
  local ended, part = {}, {}
  for i = 1, count do
    local at = FIRST + 4 * (i - 1)
    local mid, age_ms = argv[at], argv[at + 2]
    if #argv[at + 3] > 65536 or part[mid]
      or (age_ms ~= '0' and (#age_ms > 12 or not string.find(age_ms, '^%d+$'))) then return end
    ended[i], part[mid] = mid, 'ended'
  end
  local before = redis.call('GET', last_call)
  local level, floor, max_lease, maxlen, fence, longest_content, walked_at, plain_until = unpack(
    redis.call('HMGET', meta, 'events', 'floor', 'max_lease', 'maxlen', 'fence', 'max_content', 'walked', 'plain_until'))
  floor, fence, max_lease = tonumber(floor or 0), tonumber(fence or 0), max_lease == lease_ms and lease or tonumber(max_lease or 0)
  plain_until = tonumber(plain_until)
  if not plain_until or plain_until > 253402300799999 or not (floor and max_lease and fence) or not (max_lease >= 0 and max_lease <= 86400000)
    or not (fence >= 0 and fence <= 9e15 and fence % 1 == 0)
    or (before and call <= (tonumber(string.match(before, '^%d+')) or 1e15)) then return end
  local now_ms = tonumber(now)
  if not now_ms then
    local time = redis.call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  if not (floor >= 0 and floor <= now_ms and now_ms < plain_until) then return end

  local sleep_ms, from, due_at, mids, nmids, more = 0, 0, nil, {}, 0, false
  if wanted > 0 then
    local till = tonumber(redis.call('GET', eoq_backoff))
    if till and till > now_ms then sleep_ms = till - now_ms end
    if sleep_ms > 30000 then return end
    mids = redis.call('LRANGE', ready, '0', limit)
    nmids = #mids
    if sleep_ms > 0 then
      if reply[1] and count == 0 then return {reply[1], sleep_ms, 0, 0} end
      mids, nmids = {}, 0
    elseif nmids > wanted then
      more, mids[nmids], nmids = true, nil, wanted
    end
  end
  local looks, contents = wanted > 0 and sleep_ms == 0, nil
  if nmids > 1 and not (nmids * (tonumber(longest_content) or 1e15) <= 4194304) then return end
  if nmids == 1 then
    local mid = mids[1]
    contents = {redis.call('HGET', messages, mid)}
    if not contents[1] or part[mid] or #mid > 512 or string.find(mid, '[^ -~]') then return end
    part[mid] = 'handed'
  elseif nmids > 0 then
    contents = redis.call('HMGET', messages, unpack(mids))
    for i = 1, nmids do
      local mid = mids[i]
      if not contents[i] or part[mid] or #mid > 512 then return end
      part[mid] = 'handed'
    end
    if string.find(table.concat(mids), '[^ -~]') then return end
  else
    redis.call('HLEN', messages)
  end
  if count == 1 then
    if redis.call('HGET', tokens, ended[1]) ~= argv[FIRST + 1] then return end
  elseif count > 0 then
    local held = redis.call('HMGET', tokens, unpack(ended))
    for i = 1, count do
      if held[i] ~= argv[FIRST + 4 * i - 3] then return end
    end
  else
    redis.call('HLEN', tokens)
  end

  -- The part of the circle to check, as seldom as hand_out does: finished mids are removed, held mids move on.
  local since, n, back, nback = now_ms - (tonumber(walked_at) or 0), 0, {}, 0
  local walks = looks and (nmids == 0 or fence % 10 + nmids >= 10 or not (since >= 0 and since < 100))
  local collected, ncollected, forgotten, nforgotten, left, is_walked = {}, 0, {}, 0, count, nil
  if walks then
    local walked, longest = redis.call('LRANGE', circle, '0', '99'), now_ms + max_lease
    n, is_walked = #walked, {}
    if n > 0 then
      local finished, expiries = redis.call('SMISMEMBER', done, unpack(walked)), redis.call('HMGET', locks, unpack(walked))
      for i = 1, n do
        local mid, expiry, its_part = walked[i], tonumber(expiries[i]), part[walked[i]]
        if its_part == 'handed' then return end
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
          return
        end
      end
    else
      redis.call('SCARD', done)
      redis.call('HLEN', locks)
    end
  else
    redis.call('LLEN', circle)
    redis.call('SCARD', done)
    if count == 0 then redis.call('HLEN', locks) end
  end
  local rests, runs, length = looks and nmids == 0, 0, nback
  if rests then
    runs = tonumber(redis.call('GET', ndry_runs) or 0)
    if n == 100 then length = redis.call('LLEN', circle) - n + length end
    due_at = tonumber(redis.call('ZRANGE', due, '0', '0', 'WITHSCORES')[2])
    if due_at and not (due_at > now_ms and due_at % 1 == 0) then return end
  end
  if not (runs and runs >= 0 and runs <= 100 and runs % 1 == 0) then return end
  local nwake = more and redis.call('LLEN', wake) or 0

  if count > 0 then
    redis.call('HDEL', locks, unpack(ended))
    redis.call('HDEL', tokens, unpack(ended))
    if left == count then
      redis.call('SADD', done, unpack(ended))
    elseif left > 0 then
      local rest = {}
      for i = 1, count do
        if not is_walked[ended[i]] then rest[#rest + 1] = ended[i] end
      end
      redis.call('SADD', done, unpack(rest))
    end
    if level ~= 'off' then
      if not maxlen or #maxlen > 10 or not string.find(maxlen, '^%d+$') then maxlen = '100000' end
      local last_age, at_text = nil, nil
      for i = 1, count do
        local at = FIRST + 4 * (i - 1)
        local age_ms = argv[at + 2]
        if age_ms ~= last_age then last_age, at_text = age_ms, string.format('%d', now_ms - age_ms) end
        local text = 'done\31' .. ended[i] .. '\31' .. at_text .. '\31' .. argv[at + 3]
        if i % 100 == 1 then
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
  local until_ms, until_text = now_ms + lease, wanted > 0 and string.format('%d', now_ms + lease)
  if nmids > 0 then
    local now_text, fence_text, stem = string.format('%d', now_ms), string.format('%d', fence + nmids), caller .. '.' .. number .. '.'
    from = fence + 1
    if nmids == 1 then
      redis.call('LPOP', ready)
      redis.call('HSET', locks, mids[1], until_text)
      redis.call('HSET', tokens, mids[1], stem .. '0')
    else
      redis.call('LTRIM', ready, string.format('%d', nmids), '-1')
      local pairs_of = {}
      for i = 1, nmids do pairs_of[2 * i - 1], pairs_of[2 * i] = mids[i], until_text end
      redis.call('HSET', locks, unpack(pairs_of))
      for i = 1, nmids do pairs_of[2 * i] = stem .. (i - 1) end
      redis.call('HSET', tokens, unpack(pairs_of))
    end
    if walks then
      redis.call('HSET', meta, 'floor', now_text, 'fence', fence_text, 'walked', now_text)
    else
      redis.call('HSET', meta, 'floor', now_text, 'fence', fence_text)
    end
    if lease > max_lease then redis.call('HSET', meta, 'max_lease', lease_ms) end
    if more then redis.call('DEL', eoq_backoff, ndry_runs) else redis.call('DEL', ndry_runs) end
    if more and nwake == 0 then redis.call('LPUSH', wake, '1') end
    for i = 1, nmids do back[nback + i] = mids[i] end
  elseif walks then
    local now_text = string.format('%d', now_ms)
    redis.call('HSET', meta, 'floor', now_text, 'walked', now_text)
  elseif floor < now_ms then
    redis.call('HSET', meta, 'floor', string.format('%d', now_ms))
  end
  if back[1] then redis.call('RPUSH', circle, unpack(back)) end
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
  local nreply = #reply
  for i = 1, count do reply[nreply + i] = 'ok' end
  nreply = nreply + count
  local record = number .. '\30' .. (count == 1 and 'ok\30' or count == 0 and '\30' or table.concat(reply, '\31') .. '\30')
  if wanted > 0 then
    record = record .. sleep_ms .. '\0310\31' .. from .. '\31' .. until_text
    if nmids == 1 then record = record .. '\31' .. mids[1] elseif nmids > 1 then record = record .. '\31' .. table.concat(mids, '\31') end
    reply[nreply + 1], reply[nreply + 2], reply[nreply + 3] = sleep_ms, 0, from
    nreply = nreply + 3
  end
  for i = 1, nmids do
    reply[nreply + 1], reply[nreply + 2], reply[nreply + 3], reply[nreply + 4], reply[nreply + 5], reply[nreply + 6], reply[nreply + 7] =
      mids[i], contents[i], 1, 0, '', until_ms, 0
    nreply = nreply + 7
  end
  redis.call('SET', last_call, record, 'PX', '600000')
  return reply
end
