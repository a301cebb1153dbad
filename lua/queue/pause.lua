#!lua flags=allow-oom
--[[
pause: stop handing out messages until resume, or for a time; upkeep continues.

KEYS
  eoq_backoff:string wake:list meta:hash
ARGV
  for_ms  how long, or '' until it is resumed, 1-3153600000000
  now     epoch ms, or '' for the server's clock
RETURNS  {'paused', when it ends, epoch ms, or 0 if it doesn't end by itself}
COST     O(1)
WRITES   all keys; without for_ms only meta
]]
local eoq_backoff, wake, meta = unpack(KEYS)
local for_ms, now = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(2)
--@include _stored
--@include shared/_clock
for_ms = whole_or_none('for_ms', for_ms, 1, MAX_MS)
now = time_ms(whole_or_none('now', now, 0, LATEST_MS))
local nwake = redis.call('LLEN', wake)
redis.call('STRLEN', eoq_backoff)

redis.call('HDEL', meta, 'plain_until')
if not for_ms then
  redis.call('HSET', meta, 'paused', '1')
  redis.call('HDEL', meta, 'pause_ends')
  return {'paused', 0}
end
local ends = math.min(LATEST_MS, now + for_ms)
redis.call('HSET', meta, 'paused', '1', 'pause_ends', string.format('%.0f', ends))
-- Callers that rest now would rest beyond the end of the pause.
redis.call('DEL', eoq_backoff)
if nwake == 0 then redis.call('LPUSH', wake, '1') end
return {'paused', ends}
