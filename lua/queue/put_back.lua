#!lua flags=allow-oom
--[[
put_back: return messages that an operation took out to their former places, byte for byte.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash
  keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream flow_outbox:stream bin:hash last_call:string
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  op      the operation's id, which the events name
  place   'waiting' | 'dead': where the messages were; 'revived': they were dead, and must be dead again; 'edited': they
          had another content
  then one per message: mid or dead id, 1-250 of them, in the order of their places
RETURNS  {per message: 'restored' | 'nil': the bin doesn't have it | 'exists': its mid lives again, or it is among
         the dead | 'sealed': the queue is, and its message or dead message would live in it again | 'changed': it was revived or edited, and has been started, changed or cancelled
         since | 'damaged': the bin's entry is
         no message} | {'closed'}
COST     O(messages)
WRITES   nothing for one that isn't restored; nothing at all when the call is refused. A message whose place in ready or in
         its line has passed comes first
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead,
  keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, flow_outbox, bin, last_call = unpack(KEYS)
local caller, number, now, op, place = unpack(ARGV, 1, 5)

--@include shared/_arguments
keys_are(32)
arguments_are(5, 1, 250)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
one_of('place', place, 'waiting', 'dead', 'revived', 'edited')
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _probe_live
probe_live()
probe('HLEN', dead_messages, last_dead)
probe('ZCARD', dead)
local any = {left_ready = redis.call('SCARD', left_ready) > 0, left_circle = redis.call('SCARD', left_circle) > 0}
local nwake = redis.call('LLEN', wake)
--@include _counters
--@include _text
--@include _mid
--@include _bin
operation(op)

-- Read before the functions of lines are made, which depend on whether the queue has keys.
local taken_out, begins = {}, false
for i = 6, #ARGV do
  local text = not call.refused and not call.kept and not taken_out[ARGV[i]] and redis.call('HGET', bin, LETTERS[place] .. ARGV[i])
  if text then
    local parts = parts_in(text, PARTS[place])
    taken_out[ARGV[i]] = {parts = parts, size = #ARGV[i] + #text}
    local own = parts and place == 'waiting' and parts[6]
    begins = begins or (not turn and own and string.find(own, '^%d*,[@<>]?%d*,o?%-?%d*,.') ~= nil)
  end
end
if begins then turn = 0 end
--@include _members
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _place
--@include _free
--@include _generation
--@include _waiting

-- Its former place in its line, if the line hasn't passed it.
local function to_its_slot(mid, own)
  local all = in_lines()
  local key, slot, ordered = all.key_in(own)
  local s, at = all.state_of(key), tonumber(slot)
  if not at or at < s.head or at >= s.tail or string.format('%.0f', at) ~= slot then return false end
  if redis.call('HSETNX', lines, slot .. ':' .. key, mid) == 0 then return false end
  s.waiting, s.ordered, s.touched = s.waiting + 1, s.ordered or ordered, true
  all.offer(key, s)
  wake_up()
  return true
end

-- Push the last message first, so that the first message ends up first.
local first_ones, nback = {}, 0
local function put_waiting(mid, parts)
  local content, own = parts[8], parts[6]
  if not is_mid(mid) or mid == '' or not content or #content > 1048576 then return 'damaged' end
  if redis.call('HSETNX', messages, mid, content) == 0 then return 'exists' end
  tick()
  if string.byte(mid) == TILDE then nback = nback + 1 end
  for i, key in ipairs({nattempts, ncrashes, nunknowns, generations, options, progress}) do
    if parts[i + 1] then
      not_plain()
      redis.call('HSET', key, mid, parts[i + 1])
    end
  end
  if #content > max_content then
    max_content = #content
    redis.call('HSET', meta, 'max_content', max_content)
  end
  if parts[1] then
    to_due(mid, stored(parts[1], LATEST_MS, 0))
  elseif not (turn and own and in_lines().key_in(own) and to_its_slot(mid, own)) then
    first_ones[#first_ones + 1] = mid
  end
  emit('revived', mid, now_ms, '\31' .. (parts[2] or '') .. '\31\31\31\31\31\31' .. op .. '\31\31' .. #content)
  return 'restored'
end

local function put_dead(id, parts)
  local mid, died_at, content = string.match(id, '^(.*)#[^#]*$'), stored(parts[1], 9e15, nil), parts[3]
  if not (mid and died_at and content) then return 'damaged' end
  if redis.call('HSETNX', dead_messages, id, content) == 0 then return 'exists' end
  tick()
  redis.call('ZADD', dead, parts[1], id)
  if parts[2] then redis.call('HSETNX', last_dead, mid, id) end
  return 'restored'
end

-- Only while it waits for its first attempt, with the content with which it died.
local function put_revived(id, parts)
  local mid = string.match(id, '^(.*)#[^#]*$')
  local head, length = string.match(parts[3] or '', '^(%d*\31%d*\31%d*,%d*[^\31]*\31(%d+)\31)')
  if not (mid and head and stored(parts[1], 9e15, nil)) or #length > 7 then return 'damaged' end
  if redis.call('HEXISTS', dead_messages, id) == 1 then return 'exists' end
  local content = redis.call('HGET', messages, mid)
  if not_waiting(mid, '') or content ~= string.sub(parts[3], #head + length + 1) then return 'changed' end
  tick()
  emit('cancelled', mid, now_ms, '\31' .. (redis.call('HGET', nattempts, mid) or '') .. '\31\31\31\31\31\31' .. op)
  end_member('dead', mid)
  if redis.call('HEXISTS', backoffs, mid) == 1 then leave_due(mid) else leave_ready(mid) end
  forget(mid)
  return put_dead(id, parts)
end

local function put_content(mid, parts)
  local generation, attempts, reported, former, edited = unpack(parts)
  if not (generation and former and edited) or #former > 1048576 then return 'damaged' end
  local same = not not_waiting(mid, generation) and redis.call('HGET', nattempts, mid) == attempts
  -- Its later reports belong to the newer content.
  if not same or redis.call('HEXISTS', progress, mid) == 1 or redis.call('HGET', messages, mid) ~= edited then return 'changed' end
  tick()
  redis.call('HSET', messages, mid, former)
  if level == 'all' then emit('enqueued', mid, now_ms, '\31\31\31\31\31\31\31updated\31\31' .. #former) end
  if reported then
    not_plain()
    redis.call('HSET', progress, mid, reported)
  end
  return 'restored'
end

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local by_place = {waiting = put_waiting, dead = put_dead, revived = put_revived, edited = put_content}
local put, words, changed, stays_out = by_place[place], {}, false, sealed and (place == 'waiting' or place == 'dead')
for i = 6, #ARGV do
  local id = ARGV[i]
  local kept = taken_out[id]
  taken_out[id] = nil
  local word = not kept and 'nil' or not kept.parts and 'damaged' or stays_out and 'sealed' or put(id, kept.parts)
  words[#words + 1] = word
  if word == 'restored' then
    changed = true
    drop(place, id, kept.size)
  end
end
for i = #first_ones, 1, -1 do to_ready(first_ones[i], true) end
close_bin()
save_lines()
save_members(nback)
if begins and changed then
  not_plain()
  redis.call('HSETNX', meta, 'turn', '0')
end
record_call(call, table.concat(words, '\31') .. '\30')
return words
