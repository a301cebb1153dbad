#!lua flags=no-writes
--[[
why: return the facts that explain why a message runs or waits.

KEYS
  messages:hash locks:hash backoffs:hash requeue:hash options:hash done:set ready:list keys:hash lines:hash
  turns:zset rules:hash meta:hash events:stream
ARGV
  mid  message id
  now  epoch ms, or '' for the server's clock
RETURNS  {status as status has it, key or '', 1 if it is ordered, its place in the line from 1 or 0, waiting, running and
         most of its key or 0, held until or 0, ms of the next start that the key's rate allows or 0, the starts of
         that rate and in how many ms or 0, 1 if the queue is paused, running in the queue, most of these or 0, number of keys with earlier turns, epoch ms of now, then per running message of the key, ten at most: mid, lock_at}
COST     O(1); O(locks) for a key whose messages run, of 10,000 locks at most
WRITES   nothing
]]
local messages, locks, backoffs, requeue, options, done, ready, keys, lines, turns, rules, meta, events = unpack(KEYS)
local mid, now = unpack(ARGV)

--@include shared/_arguments
keys_are(13)
arguments_are(2)
--@include _stored
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _status
--@include _dequeue_rate
--@include _key_facts

local word = status(mid)
local mark, slot, key = string.match(redis.call('HGET', options, mid) or '', '^%d*,[@<>]?%d*,(o?)(%-?%d*),(.+)$')
local state = key and redis.call('HGET', keys, key)
local facts = state and key_facts(key, state)
facts = facts or {head = 0, waiting = 0, running = 0, held_until = 0, starts_at = 0}
local place = 0
if slot and redis.call('HGET', lines, slot .. ':' .. key) == mid then place = math.max(1, tonumber(slot) - facts.head + 1) end
local reply = {
  word, key or '', mark == 'o' and 1 or 0, place, facts.waiting, facts.running, facts.most or 0, facts.held_until,
  facts.starts_at, facts.starts or 0, facts.starts and facts.span_ms or 0, paused == '1' and 1 or 0,
  redis.call('HLEN', locks), stored(redis.call('HGET', meta, 'max'), 1e9, 0),
  place > 0 and redis.call('ZRANK', turns, key) or 0, now_ms,
}
if facts.running > 0 and redis.call('HLEN', locks) <= 10000 then
  for _, held in ipairs(redis.call('HKEYS', locks)) do
    local own = #reply < 36 and redis.call('HGET', options, held)
    if own and string.match(own, '^%d*,[@<>]?%d*,o?%-?%d*,(.+)$') == key then
      reply[#reply + 1], reply[#reply + 2] = held, stored(redis.call('HGET', locks, held), LATEST_MS, 0)
    end
  end
end
return reply
