#!lua flags=allow-oom
--[[
visibility: when messages become visible again.

KEYS
  messages:zset attributes:hash
ARGV
  now   epoch microseconds, or '' for the server's clock
  vt    seconds from now
  then two per message: id, receipt (times received when it was handed out; '' = whoever has it now)
RETURNS  {'ok', per message: 'changed' | 'absent' | 'stale'} | {'not_found'}
COST     O(messages changed x log messages)
WRITES   messages; nothing for one that is absent or stale
]]
local messages, attributes = unpack(KEYS)
local now, vt = unpack(ARGV, 1, 2)

--@include _clock
--@include _settings
--@include _held

if not exists then return {'not_found'} end

local reply = {'ok'}
for i = 3, #ARGV, 2 do
  local word = refusal(ARGV[i], ARGV[i + 1])
  if not word then redis.call('ZADD', messages, now_ms + 1000 * vt, ARGV[i]) end
  reply[#reply + 1] = word or 'changed'
end
return reply
