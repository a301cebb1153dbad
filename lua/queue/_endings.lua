-- endings: six arguments per ending, from ARGV[first] on, `count` endings. Plain successes are gathered and written together.
-- needs: tokens options any free emit level now_ms rarely tick done turn in_lines members_done
local MAX_RECORD_LENGTH, MAX_TRACEBACK, COMMA = 65536, 16384, 44
local IS_OUTCOME = {done = true, retry = true, dead = true, crashed = true, snooze = true, release = true, unknown = true,
  expired = true, hold = true}

-- Valid values of `detail` per outcome, and of `age_ms` and `record`; checked before the first write.
local function check_endings(first, count)
  local argv = ARGV
  for at = first, first + 6 * (count - 1), 6 do
    local outcome, detail = argv[at + 2], argv[at + 3]
    if outcome ~= 'done' or detail ~= '' then
      if not IS_OUTCOME[outcome] then refuse('outcome', 'one of those that finish names') end
      if outcome == 'retry' then
        local backoff, traceback = string.match(detail, '^([^\31]*)\31(.*)$')
        if traceback and #traceback > MAX_TRACEBACK then refuse('a traceback', MAX_TRACEBACK .. ' bytes at most') end
        whole_or_none('detail', backoff or detail, 0, MAX_MS)
      elseif outcome ~= 'dead' and outcome ~= 'crashed' then
        whole_or_none('detail', detail, 0, MAX_MS)
      end
    end
    if argv[at + 4] ~= '0' then whole('age_ms', argv[at + 4], 0, MAX_MS) end
    if #argv[at + 5] > MAX_RECORD_LENGTH then refuse('record', MAX_RECORD_LENGTH .. ' bytes at most') end
  end
end

local function ended_mids(first, count)
  local mids, argv = {}, ARGV
  for i = 1, count do mids[i] = argv[first + 6 * (i - 1)] end
  return mids
end

-- A record, with the key of its message after its first eleven columns. Only the place of an error may follow.
local function with_key(record, key)
  if not key or level == 'off' then return record end
  local missing, at = 11, 0
  repeat
    at = string.find(record, '\31', at + 1, true)
    if at then missing = missing - 1 end
  until not at
  if missing > 0 then return record .. string.rep('\31', missing) .. key end
  local head, rest = string.match(record, '^(' .. string.rep('[^\31]*\31', 11) .. ')(\31.*)$')
  return head and head .. key .. rest or record
end

-- A stale ending is ignored.
local function settle_all(words, first, count, crash_limit)
  local mids, ended, released, finished, argv = ended_mids(first, count), {}, {}, {}, ARGV
  local finished_keys, nfinished, all = {}, 0, turn and in_lines()
  local held = count > 0 and redis.call('HMGET', tokens, unpack(mids)) or mids
  local own = any.options and (turn or not any.newer) and count > 0 and redis.call('HMGET', options, unpack(mids)) or {}
  local function is_plain(i)
    if any.newer then return false end
    if not own[i] then return true end
    local first, second = string.byte(own[i], 1, 2)
    return (first == COMMA and second == COMMA) or string.find(own[i], '^%d*,,') or string.find(own[i], '^%d*,$')
  end
  for i = 1, count do
    local at = first + 6 * (i - 1)
    local mid, token, outcome, detail = argv[at], argv[at + 1], argv[at + 2], argv[at + 3]
    if ended[mid] or held[i] ~= token then words[i] = 'stale' else
      words[i], ended[mid] = 'ok', true
      tick()
      local key = all and own[i] and all.key_of(own[i])
      if outcome == 'done' and detail == '' and is_plain(i) then
        nfinished = nfinished + 1
        finished[nfinished], finished_keys[nfinished] = mid, key or false
        emit('done', mid, now_ms - argv[at + 4], key and with_key(argv[at + 5], key) or argv[at + 5])
      elseif outcome == 'release' or outcome == 'hold' then
        released[#released + 1] = {mid, token, outcome, detail}
        -- A release doesn't end an attempt, so it has no event.
        if outcome == 'hold' then emit('snoozed', mid, now_ms - argv[at + 4], with_key(argv[at + 5], key)) end
      else
        local kind = rarely().settle(mid, token, outcome, detail, crash_limit)
        emit(kind, mid, now_ms - argv[at + 4], with_key(argv[at + 5], key))
        if outcome == 'crashed' and kind == 'dead' then words[i] = 'dead' end
      end
    end
  end
  -- Each goes to the front of ready, the first message last.
  for i = #released, 1, -1 do rarely().settle(unpack(released[i])) end
  if #finished > 0 then
    free(finished, turn and finished_keys)
    redis.call('SADD', done, unpack(finished))
    members_done(finished)
  end
end
