#!lua flags=no-writes
--[[
ruby_due: what of Sidekiq's schedule or retry set is due, oldest first, and when the next one is.

KEYS
  waiting:zset
ARGV
  now    epoch ms, or '' for the server's clock
  limit  most jobs
RETURNS  {ms until the first that isn't due or -1 for none, per job that is due: its bytes, when it was due}
COST     O(jobs)
WRITES   nothing
]]
local waiting = unpack(KEYS)
local now, limit = unpack(ARGV)

if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local second = string.format('%.3f', now / 1000)
local reply = redis.call('ZRANGEBYSCORE', waiting, '-inf', second, 'WITHSCORES', 'LIMIT', 0, limit)
local following = redis.call('ZRANGEBYSCORE', waiting, '(' .. second, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
table.insert(reply, 1, following[2] and math.ceil(following[2] * 1000 - now) or -1)
return reply
