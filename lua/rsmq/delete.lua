#!lua flags=allow-oom
--[[
delete: messages for good, each only if it wasn't received again since.

KEYS
  messages:zset attributes:hash
ARGV
  two per message: id, receipt (times received when it was handed out; '' = whoever has it now)
RETURNS  {'ok' | 'not_found', per message: 'deleted' | 'absent' | 'stale'}: not_found when the first is absent and
         there is no such queue
COST     O(messages deleted x log messages)
WRITES   nothing for a stale one; fields without a message are removed and count as absent
]]
local messages, attributes = unpack(KEYS)

--@include _delete

local words = delete(1)
table.insert(words, 1, words[1] == 'absent' and redis.call('EXISTS', attributes) == 0 and 'not_found' or 'ok')
return words
