#!lua flags=allow-oom
--[[
delete: messages for good, each only if it wasn't received again since.

KEYS
  messages:zset attributes:hash
ARGV
  two per message: id, receipt (times received when it was handed out; '' = whoever has it now)
RETURNS  {'ok', per message: 'deleted' | 'absent' | 'stale'}
COST     O(messages deleted x log messages)
WRITES   nothing for a stale one; fields without a message are removed and count as absent
]]
local messages, attributes = unpack(KEYS)

--@include _held

local reply = {'ok'}
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local word = refusal(id, ARGV[i + 1])
  if not word then
    redis.call('ZREM', messages, id)
    word = redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr') > 0 and 'deleted' or 'absent'
  elseif word == 'absent' and #id == 32 then
    redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr')
  end
  reply[#reply + 1] = word
end
return reply
