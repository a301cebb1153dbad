#!lua flags=allow-oom
--[[
visibility: set when messages become visible again.

KEYS
  messages:zset attributes:hash
ARGV
  now   epoch microseconds, or '' for the server's clock
  vt    seconds from now
  then two per message: id, receipt (times received when it was handed out; '' = regardless of who has it)
RETURNS  {'ok', per message: 'changed' | 'absent' | 'stale'} | {'not_found'}
COST     O(messages changed x log messages)
WRITES   messages; nothing for an absent or stale message
]]
local messages, attributes = unpack(KEYS)
local now, vt = unpack(ARGV, 1, 2)

--@include shared/_arguments
keys_are(2)
arguments_are(2, 0, 1000, 2)
whole_or_none('now', now, 0, 9007199254740991)
vt = whole('vt', vt, 0, 9999999)
for i = 4, #ARGV, 2 do whole_or_none('receipt', ARGV[i], 0, 9007199254740991) end
--@include _clock
read_clock(now)
--@include _settings
--@include _held

if not exists then return {'not_found'} end
probe('ZCARD', messages)

local reply = {'ok'}
for i = 3, #ARGV, 2 do
  local word = refusal(ARGV[i], ARGV[i + 1])
  if not word then redis.call('ZADD', messages, string.format('%.0f', now_ms + 1000 * vt), ARGV[i]) end
  reply[#reply + 1] = word or 'changed'
end
return reply
