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

--@include _delete

local words = delete(1)
table.insert(words, 1, 'ok')
return words
