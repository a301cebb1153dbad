-- usual: the call of a worker that gets one job at a time: at most one plain success ends, and at most one message is handed
-- out, of which nothing is known but its content. What it touches is read before its first write, and no function is made.
-- needs: messages locks tokens nattempts ncrashes nunknowns generations requeue options progress ready due circle done left_ready left_circle eoq_backoff ndry_runs wake meta events last_call
-- ended, token, age_ms, record: of the ending, or nil, nil, '0', ''; word: what the record of the call begins with;
-- reply: what its reply begins with, {'handed'} for a dequeue
-- -> the reply; nil where the call isn't usual: then nothing is written, and the general case goes on. The time, if it was read
local function usual_call(word, reply, ended, token, age_ms, record)
  local caller, number, now, lease_ms, crash_limit, limit = unpack(ARGV, 1, 6)
  local wanted, lease, crashes, call = tonumber(limit), tonumber(lease_ms), tonumber(crash_limit), tonumber(number)
  if string.find(number .. now .. lease_ms .. crash_limit .. limit .. age_ms, '%D') or number < '1'
    or #number > 14 or #now > 14 or #age_ms > 12 or age_ms == '' or not (wanted and lease and crashes) or wanted > 1000
    or lease < 1 or lease > 86400000 or crashes > 1000000 or #caller > 64 or not string.find(caller, '^[!-~]+$')
    or #record > 65536 then return end
  local head = wanted > 0 and redis.call('LRANGE', ready, 0, 1) or {}
  if wanted > 1 and head[2] then return end
  local before = redis.call('GET', last_call)
  local paused, level, floor, max_lease, maxlen, fence, turn, members = unpack(
    redis.call('HMGET', meta, 'paused', 'events', 'floor', 'max_lease', 'maxlen', 'fence', 'turn', 'members'))
  floor, fence, max_lease = tonumber(floor or 0), tonumber(fence or 0), max_lease == lease_ms and lease or tonumber(max_lease or 0)
  if turn or members or paused == '1' or not (floor and max_lease and fence) or not (max_lease >= 0 and max_lease <= 86400000)
    or not (fence >= 0 and fence <= 9e15 and fence % 1 == 0)
    or (before and call <= (tonumber(string.match(before, '^%d+')) or 1e15)) then return end
  local now_ms = tonumber(now)
  if not now_ms then
    local time = redis.call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  if not (floor >= 0 and floor <= now_ms) then return nil, now_ms end
  if redis.call('EXISTS', ncrashes, nunknowns, generations, requeue, options, progress, left_ready, left_circle) > 0 then return nil, now_ms end

  local sleep_ms, from, due_at = 0, 0, nil
  if wanted > 0 then
    local till = tonumber(redis.call('GET', eoq_backoff))
    if till and till > now_ms then sleep_ms = till - now_ms end
    due_at = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
    if sleep_ms > 30000 or (due_at and not (due_at > now_ms and due_at % 1 == 0)) then return nil, now_ms end
    if sleep_ms > 0 then
      if reply[1] and not ended then return {reply[1], sleep_ms, 0, 0} end
      head = {}
    end
  end
  local looks, mid = wanted > 0 and sleep_ms == 0, head[1] or ''
  local content, attempts = redis.call('HGET', messages, mid), redis.call('HGET', nattempts, mid)
  if attempts or mid == ended or #mid > 512 or string.find(mid, '[^ -~]') or (head[1] and not content) then return nil, now_ms end
  if redis.call('HGET', tokens, ended or mid) ~= (token or false) then return nil, now_ms end

  -- The part of the circle that is looked at: what is finished goes, what is held goes on.
  local lap = head[1] and math.min(100, 2 * wanted + 8) or 100
  local walked = looks and redis.call('LRANGE', circle, 0, lap - 1) or {}
  local n, longest = #walked, now_ms + max_lease
  walked[n + 1] = mid
  local finished, expiries = redis.call('SMISMEMBER', done, unpack(walked)), redis.call('HMGET', locks, unpack(walked))
  local collected, forgotten, back, unusual, is_walked = {}, {}, {}, finished[n + 1] == 1, false
  for i = 1, n do
    local one, expiry = walked[i], tonumber(expiries[i])
    if one == ended or finished[i] == 1 then
      collected[#collected + 1] = one
      if finished[i] == 1 then forgotten[#forgotten + 1] = one end
      is_walked = is_walked or one == ended
    elseif expiry and expiry > now_ms and expiry <= longest then
      back[#back + 1] = one
    else
      unusual = true
    end
  end
  local rests, runs, length = looks and not head[1], 0, #back
  if rests then
    runs = tonumber(redis.call('GET', ndry_runs) or 0)
    if n == lap then length = redis.call('LLEN', circle) - n + length end
  end
  if unusual or not (runs and runs >= 0 and runs <= 100 and runs % 1 == 0) then return nil, now_ms end
  local nwake = head[2] and redis.call('LLEN', wake) or 0

  if ended then
    redis.call('HDEL', locks, ended)
    redis.call('HDEL', tokens, ended)
    if not is_walked then redis.call('SADD', done, ended) end
    if level ~= 'off' then
      if not maxlen or #maxlen > 10 or not string.find(maxlen, '^%d+$') then maxlen = '100000' end
      redis.pcall('XADD', events, 'MAXLEN', '~', maxlen, '*', '1',
        'done\31' .. ended .. '\31' .. string.format('%.0f', now_ms - age_ms) .. '\31' .. record)
    end
  end
  if n > 0 then redis.call('LTRIM', circle, n, -1) end
  if collected[1] then
    redis.call('HDEL', messages, unpack(collected))
    redis.call('HDEL', nattempts, unpack(collected))
    if forgotten[1] then redis.call('SREM', done, unpack(forgotten)) end
  end
  local until_text = wanted > 0 and string.format('%.0f', now_ms + lease)
  if head[1] then
    from = fence + 1
    redis.call('LPOP', ready)
    redis.call('HSET', locks, mid, until_text)
    redis.call('HSET', tokens, mid, caller .. '.' .. number .. '.0')
    redis.call('HSET', nattempts, mid, '1')
    redis.call('HSET', meta, 'floor', now_ms, 'fence', string.format('%.0f', from))
    if lease > max_lease then redis.call('HSET', meta, 'max_lease', lease) end
    redis.call('DEL', head[2] and eoq_backoff or ndry_runs, ndry_runs)
    if head[2] and nwake == 0 then redis.call('LPUSH', wake, '1') end
    back[#back + 1] = mid
  elseif floor < now_ms then
    redis.call('HSET', meta, 'floor', now_ms)
  end
  if back[1] then redis.call('RPUSH', circle, unpack(back)) end
  if rests then
    runs = math.min(12, runs + 1)
    sleep_ms = math.min(length > 0 and math.max(50, math.floor(2000 * math.min(1, lap / length))) or 30000, 10 * 2 ^ runs)
    if due_at then
      from = math.max(1, due_at - now_ms)
      sleep_ms = math.min(sleep_ms, from)
    end
    redis.call('SET', ndry_runs, runs, 'PX', 60000)
    redis.call('SET', eoq_backoff, now_ms + sleep_ms, 'PX', sleep_ms)
  end
  local short = ''
  if wanted > 0 then
    short = sleep_ms .. '\31' .. '0\31' .. from .. '\31' .. until_text .. (head[1] and '\31' .. mid or '')
    n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = sleep_ms, 0, from
  end
  if head[1] then
    reply[n + 4], reply[n + 5], reply[n + 6], reply[n + 7], reply[n + 8], reply[n + 9], reply[n + 10] =
      mid, content, 1, 0, '', now_ms + lease, 0
  end
  redis.call('SET', last_call, number .. '\30' .. word .. '\30' .. short, 'PX', 600000)
  return reply
end
