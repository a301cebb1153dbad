#!lua
--[[
hold: pause a key for a while; running messages continue.

KEYS
  messages:hash options:hash locks:hash ready:list keys:hash lines:hash turns:zset rests:zset rules:hash due:zset
  eoq_backoff:string wake:list meta:hash events:stream
ARGV
  now      epoch ms, or '' for the server's clock
  key      1-512 bytes
  wait_ms  duration, 0-31536000000; 0 ends the hold
RETURNS  {epoch ms until which nothing is handed out, 0 = it isn't held, or the queue is sealed and doesn't have it}
COST     O(1)
WRITES   nothing to end a hold that doesn't exist, or for a key that a sealed queue doesn't have
]]
local messages, options, locks, ready, keys, lines, turns, rests, rules, due,
  eoq_backoff, wake, meta, events = unpack(KEYS)
local now, key, wait_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(14)
arguments_are(3)
wait_ms = whole('wait_ms', wait_ms, 0, 31536000000)
--@include _stored
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _text
if key == '' or #key > 512 or not is_text(key) then refuse('key', '1 to 512 bytes of UTF-8 without control characters') end
local any = {}
local nwake = redis.call('LLEN', wake)
probe('HLEN', messages, options, locks)
probe('LLEN', ready)
local begins = not turn
turn = turn or 0
--@include _wake
--@include _dequeue_rate
--@include _lines

-- The hold would let a key live in a sealed queue again, unless messages of it are delayed there.
if sealed and redis.call('HEXISTS', keys, key) == 0 then
  local at = tonumber(redis.call('ZSCORE', rests, '\31' .. key) or '0') - 1e15
  local first_due = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
  if at <= now_ms and not (at >= 0 and first_due and first_due <= now_ms) then return {0} end
end
local s = in_lines().state_of(key)
if wait_ms == 0 and s.hold <= now_ms then return {0} end
tick()
if begins then
  not_plain()
  redis.call('HSETNX', meta, 'turn', '0')
end
in_lines().hold(key, wait_ms > 0 and now_ms + wait_ms or 0)
save_lines()
return {wait_ms > 0 and now_ms + wait_ms or 0}
