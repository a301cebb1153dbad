#!lua
--[[
enqueue: accept messages, or newer content for live mids, all or none.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream last_call:string
  then one result:list per message, where drop_results is 1; or last_dead:hash, where again is member or next, and
  then accepted:string, if it is next
  then moved_keys:set, where the caller knows that the queue may be sealed, and what to do with a moved message
ARGV
  caller       1-64 printable ASCII characters, the connection's random id
  number       of this call, counted up by the caller
  now          epoch ms, or '' for the server's clock
  delay_ms     earliest start: now + delay_ms, '' = keep the place of a queued mid, start a new mid now
  at           earliest start, epoch ms, '' = see delay_ms
  can_update   1: newer content may replace what waits
  can_requeue  1: newer content may run after the current run, or immediately when that is done
  again        for a live mid. done: a new message once the live message is done; start: also during its run, to run
               after it, unless newer content already waits for that; '': see can_update and can_requeue; member:
               the messages are of flows, whose mids begin with ~; the mid of a dead message 'exists'; next: as
               member, and they are of one step, in the order of their numbers, and the chunk before them was enqueued
               before. One whose number isn't above the last that was accepted within the hour 'exists', so that
               drainers who enqueue the same chunk accept each member once
  lock_ms      minimum length of this message's locks, 1-86400000, '' = the worker's lease
  dedupe_ms    how long to reject its mid after it is done, '' = until collected; '@' and ms: refuse it so long from
               now, even if it is done earlier
  at_most_ms   how long after now can_update may move a message that this call adds, '' = without end; needs delay_ms
  drop_results  1: delete the result that an earlier message of the same mid left, '' = keep it
  keyed        'key': each message's content is followed by its key, 512 bytes at most, '' = none | 'ordered': messages of a key also
               start in the order of their enqueue | '' = two per message
  then two per message: mid, content, 1-1000 messages; or three: mid, content, key
RETURNS  {per message: action, reason}: 'added' '' | 'updated' '' | 'requeued' '' | 'exists' status, 'dead' or 'accepted' |
         'moved' epoch: the queue is sealed, and neither the mid nor the key lives in it;
         {'closed'} | {'full', key, most}: the line of a key would hold more than its rule allows | {'sealed', epoch}: the
         queue is sealed, and the call has no moved_keys; {'sealed', ''}: a partition without a fence, so the caller must read the map
         again, and set the fence if the map lists the partition
COST     O(messages)
WRITES   nothing for 'exists'; only moved_keys and rests for 'moved'; nothing at all when memory or a line is full, or the call is
         refused, or for 'sealed'
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, delay_ms, at, can_update, can_requeue, again, lock_ms, dedupe_ms, at_most_ms, drop_results,
  keyed = unpack(ARGV, 1, 13)

-- The usual call: one new message of a plain text mid, without options. It reads all values before its first
-- write, and creates no function. Any other call continues with the general case, with nothing written yet.
if #KEYS == 27 and #ARGV == 15 and now .. delay_ms .. at .. lock_ms .. dedupe_ms .. at_most_ms .. drop_results .. keyed == '' then
  local mid, content = ARGV[14], ARGV[15]
  local recorded = redis.call('GET', last_call)
  local last_number = recorded and tonumber(string.match(recorded, '^%d+')) or -1
  local level, longest = unpack(redis.call('HMGET', meta, 'events', 'max_content'))
  local notes, nwake = redis.call('SCARD', left_ready), redis.call('LLEN', wake)
  local usual = (can_update == '0' or can_update == '1') and (can_requeue == '0' or can_requeue == '1')
    and (again == '' or again == 'done' or again == 'start') and #mid <= 512 and string.find(mid, '^[ -}][ -~]*$')
    and #content <= (tonumber(longest) or -1) and #content <= 1048576 and #caller <= 64 and string.find(caller, '^[!-~]+$')
    and #number <= 15 and string.find(number, '^%d+$')
    and tonumber(number) > last_number and (not recorded or last_number >= 0) and level ~= 'all' and notes == 0
  if usual and redis.call('HSETNX', messages, mid, content) == 1 then
    -- Where ready has another type, the only write before it is undone.
    if not tonumber(redis.pcall('RPUSH', ready, mid)) then
      redis.call('HDEL', messages, mid)
      return {err = 'WRONGTYPE the ready list has another type'}
    end
    redis.call('DEL', eoq_backoff)
    if nwake == 0 then redis.call('LPUSH', wake, '1') end
    redis.call('SET', last_call, number .. '\30added\31\30', 'PX', '600000')
    return {'added', ''}
  end
  -- The usual rejection: a message with the same mid is ready.
  if usual and can_update == '0' and redis.call('SISMEMBER', done, mid) == 0 and redis.call('HEXISTS', locks, mid) == 0
    and redis.call('HEXISTS', backoffs, mid) == 0 then
    redis.call('SET', last_call, number .. '\30exists\31queued\30', 'PX', '600000')
    return {'exists', 'queued'}
  end
end

--@include shared/_arguments
one_of('keyed', keyed, '', 'key', 'ordered')
one_of('drop_results', drop_results, '', '1')
local FIXED_KEYS, FIXED, WIDTH = 27, 13, keyed == '' and 2 or 3
arguments_are(FIXED, 1, 1000, WIDTH)
local in_order = again == 'next'
if in_order then again = 'member' end
local nkeys = FIXED_KEYS + (in_order and 2 or again == 'member' and 1 or drop_results == '1' and (#ARGV - FIXED) / WIDTH or 0)
keys_are(nkeys, nkeys + 1)
--@include _stored
one_of('can_update', can_update, '0', '1')
one_of('can_requeue', can_requeue, '0', '1')
whole_or_none('lock_ms', lock_ms, 1, MAX_LOCK_MS)
one_of('again', again, '', 'done', 'start', 'member')
local are_members = again == 'member'
if are_members then
  if can_update .. can_requeue .. drop_results ~= '00' or at_most_ms ~= '' then refuse('again', 'not member with updates, requeues or at_most_ms') end
  again = ''
end
local from_now_ms = string.match(dedupe_ms, '^@(.*)$')
local read = from_now_ms and whole or whole_or_none
read('dedupe_ms', from_now_ms or dedupe_ms, 0, MAX_MS)
at_most_ms = whole_or_none('at_most_ms', at_most_ms, 0, MAX_MS)
if at_most_ms and (delay_ms == '' or dedupe_ms ~= '') then refuse('at_most_ms', 'with delay_ms and without dedupe_ms') end
delay_ms, at = whole_or_none('delay_ms', delay_ms, 0, MAX_MS), whole_or_none('at', at, 0, LATEST_MS)
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
local not_before = at or (delay_ms and math.min(LATEST_MS, now_ms + delay_ms))
--@include _text

-- The message's other values: two fields, as _counters reads them.
local own = lock_ms .. ',' .. dedupe_ms
if from_now_ms then own = lock_ms .. ',@' .. string.format('%d', math.min(LATEST_MS, now_ms + from_now_ms)) end
if at_most_ms then own = lock_ms .. ',<' .. string.format('%d', math.min(LATEST_MS, now_ms + at_most_ms)) end

local batch, key_of, any_key, nkeyed = {}, {}, false, 0
if keyed == '' then
  batch = {unpack(ARGV, FIXED + 1)}
else
  local given_keys, n = {}, 0
  for i = FIXED + 1, #ARGV, 3 do
    local mid, key = ARGV[i], ARGV[i + 2]
    if #key > 512 then refuse('a key', '512 bytes at most') end
    n = n + 2
    batch[n - 1], batch[n], given_keys[n / 2] = mid, ARGV[i + 1], key
    if key ~= '' then key_of[mid], any_key, nkeyed = key_of[mid] or key, true, nkeyed + 1 end
  end
  if not is_text(table.concat(given_keys, ' ')) then refuse('a key', 'UTF-8 without control characters') end
end
local mids, words, longest = {}, {}, max_content
for i = 1, #batch, 2 do
  local mid, size = batch[i], #batch[i + 1]
  if mid == '' or #mid > 512 then refuse('a mid', '1 to 512 bytes') end
  if size > 1048576 then refuse('a content', '1 MiB at most') end
  if size > longest then longest = size end
  mids[(i + 1) / 2], words[i], words[i + 1] = mid, 'added', ''
end
local all_mids = table.concat(mids, ' ')
if not is_text(all_mids) then refuse('a mid', 'UTF-8 without control characters') end
for i = 1, (are_members or string.find(all_mids, '~', 1, true)) and #mids or 0 do
  if (string.byte(mids[i]) == 126) ~= are_members then refuse('a mid', are_members and 'of a flow' or 'without ~ in front') end
end
if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end

if sealed and #KEYS == nkeys then return {'sealed', sealed} end
-- A partition has a fence from its start. Without one, it lost its data, or the caller's map is of another time.
if not fence and string.find(meta, '/%d+}:meta$') then return {'sealed', ''} end
-- An accepted or dead member isn't enqueued again: it is left out of the call. So are messages that a sealed queue doesn't accept.
local kept_at, given_mids, result_at, accepted, last = {}, mids, {}, KEYS[FIXED_KEYS + 2], nil
if in_order then
  local function number_of(mid) return tonumber(string.match(mid, '%.(%d+)$')) or refuse('a mid', 'with a number behind a dot') end
  local first, accepted_number = number_of(mids[1]), redis.call('GET', accepted)
  last = number_of(mids[#mids])
  local up_to = tonumber(accepted_number or '') or -1
  for i = 1, first <= up_to and #mids or 0 do kept_at[i] = number_of(mids[i]) <= up_to and 'accepted' or nil end
end
local any_dead = are_members and redis.call('HLEN', KEYS[FIXED_KEYS + 1]) > 0
local moved_keys, stale_names = {}, {}
if sealed then
--@include _moved
  moved_keys, stale_names = leave_out_moved(mids, key_of, can_requeue == '1' or again ~= '', keyed == 'ordered', kept_at, KEYS[nkeys + 1])
end
if any_dead or next(kept_at) then
  local kept, dead_ids = {}, any_dead and redis.call('HMGET', KEYS[FIXED_KEYS + 1], unpack(given_mids)) or {}
  mids, words = {}, {}
  for i = 1, #given_mids do
    kept_at[i] = kept_at[i] or dead_ids[i] and 'dead' or nil
    if not kept_at[i] then
      local n = 2 * #mids
      mids[#mids + 1], kept[n + 1], kept[n + 2] = given_mids[i], batch[2 * i - 1], batch[2 * i]
      result_at[#mids] = i
      words[n + 1], words[n + 2] = 'added', ''
    end
  end
  batch = kept
end

-- Keys of another type raise here, before the first write: the keys of new messages and, if mids are live, all keys of
-- live messages.
local any = {left_ready = redis.call('SCARD', left_ready) > 0}
local nwake = redis.call('LLEN', wake)
probe('LLEN', ready)
local begins = any_key and not turn
if begins then turn = 0 end
if any_key or own ~= ',' then redis.call('HEXISTS', options, '') end
if not_before then
  redis.call('ZRANK', due, '')
  redis.call('HEXISTS', backoffs, '')
end
--@include _probe_live
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _notes
--@include _counters
--@include _place
--@include _accept

local new_till = at_most_ms and math.min(not_before, now_ms + at_most_ms) or not_before
local lives, later, mark = {}, new_till and new_till > now_ms, keyed == 'ordered' and 'o' or ''
if any_key and not later and mids[1] then
  local key, most = in_lines().full_line(mids, key_of)
  if key then return {'full', key, tostring(most)} end
end
local write = write_each
if #batch > 2 then
  if #batch / 2 * max_content <= MAX_BYTES then write = write_together else probe_live() end
end
local new = write(batch, lives, probe_live)
local changed = new[1] ~= nil
if are_members and changed then
  not_plain()
  redis.call('HSET', meta, 'members', string.format('%d', (members or 0) + #new))
end
if new[1] then
  local plain, lined = new, {}
  if any_key then
    plain = {}
    if nkeyed == #given_mids then lined = new end
    for i = 1, lined[1] and 0 or #new do
      local group = key_of[new[i]] and lined or plain
      group[#group + 1] = new[i]
    end
  end
  write_options(plain, own)
  if lined[1] and not later then
    in_lines().put(lined, key_of, own, mark)
  else
    for _, mid in ipairs(lined) do write_options({mid}, own .. ',' .. mark .. ',' .. key_of[mid]) end
  end
  not_before = new_till
  if later then put_due(new, not_before) elseif plain[1] then put_ready(plain) end
  if sealed and later then
    for _, mid in ipairs(lined) do in_lines().keep_key(key_of[mid], not_before) end
  end
end

-- Make these functions only if needed, because that costs more than a message.
if next(lives) then
  if #batch == 2 then probe_live() end
  any.newer, any.sides = true, true
--@include _status
--@include _free
--@include _generation
--@include _newer
  local given = {
    not_before = not_before, own = own, can_update = can_update, can_requeue = can_requeue, again = again,
    at_most_ms = at_most_ms, key_of = key_of, mark = mark,
  }
  for i = 1, #batch, 2 do
    if lives[i] then words[i], words[i + 1] = enqueue_again(batch[i], batch[i + 1], given) end
  end
  longest = max_content
  for i = 1, #batch, 2 do
    if words[i] ~= 'exists' then longest, changed = math.max(longest, #batch[i + 1]), true end
  end
end

for i = 1, drop_results == '1' and #batch or 0, 2 do
  if words[i] == 'added' then redis.call('DEL', KEYS[FIXED_KEYS + (result_at[(i + 1) / 2] or (i + 1) / 2)]) end
end
for i = 1, level == 'all' and #batch or 0, 2 do
  if words[i] ~= 'exists' then
    local action = words[i] == 'added' and '' or words[i]
    emit('enqueued', batch[i], now_ms, '\31\31\31\31\31\31\31' .. action .. '\31\31' .. #batch[i + 1]
      .. (key_of[batch[i]] and '\31\31' .. key_of[batch[i]] or ''))
  end
end
save_lines()
if begins and changed then
  not_plain()
  redis.call('HSETNX', meta, 'turn', '0')
end
if longest > max_content then redis.call('HSET', meta, 'max_content', longest) end
if #mids < #given_mids then
  local n, all = 0, {}
  for i = 1, #given_mids do
    if kept_at[i] then
      local is_moved = kept_at[i] == 'moved'
      all[2 * i - 1], all[2 * i] = is_moved and 'moved' or 'exists', is_moved and sealed or kept_at[i]
    else
      n = n + 2
      all[2 * i - 1], all[2 * i] = words[n - 1], words[n]
    end
  end
  words = all
end
if moved_keys[1] then redis.call('SADD', KEYS[nkeys + 1], unpack(moved_keys)) end
if stale_names[1] then redis.call('ZREM', rests, unpack(stale_names)) end
if in_order and new[1] then redis.call('SET', accepted, string.format('%d', last), 'PX', '3600000') end
record_call(call, table.concat(words, '\31') .. '\30')
return words
