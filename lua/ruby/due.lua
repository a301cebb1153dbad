#!lua flags=no-writes
--[[
due: due jobs of Sidekiq's schedule or retry set, oldest first, and when the next job is due.

KEYS
  waiting:zset
ARGV
  now    epoch ms, or '' for the server's clock
  limit  most jobs, 1-1000
RETURNS  {ms until the next job is due or -1 for none, per due job: its bytes, when it was due}
COST     O(jobs)
WRITES   nothing
]]
local waiting = unpack(KEYS)
local now, limit = unpack(ARGV)

--@include shared/_arguments
--@include shared/_clock
--@include _inputs
keys_are(1)
arguments_are(2)
local now_ms = time_ms(whole_or_none('now', now, 0, LATEST_MS))
limit = whole('limit', limit, 1, 1000)

local second = string.format('%.3f', now_ms / 1000)
local reply = redis.call('ZRANGEBYSCORE', waiting, '-inf', second, 'WITHSCORES', 'LIMIT', 0, limit)
local following = redis.call('ZRANGEBYSCORE', waiting, '(' .. second, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
table.insert(reply, 1, following[2] and math.ceil(math.min(MAX_COUNT, following[2] * 1000 - now_ms)) or -1)
return reply
