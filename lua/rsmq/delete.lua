#!lua flags=allow-oom
--[[
delete: delete messages permanently, each only if it wasn't received again since.

KEYS
  messages:zset attributes:hash
ARGV
  two per message: id, receipt (times received when it was handed out; '' = regardless of who has it)
RETURNS  {'ok' | 'not_found', per message: 'deleted' | 'absent' | 'stale'}: not_found when the first is absent and
         there is no such queue
COST     O(messages deleted x log messages)
WRITES   nothing for a stale one; fields without a message are removed and count as absent
]]
local messages, attributes = unpack(KEYS)

-- The usual call passes without the functions that say what is wrong with one.
local find = string.find
if not (#KEYS == 2 and #ARGV == 2 and (ARGV[2] == '' or (#ARGV[2] <= 6 and not find(ARGV[2], '%D')))) then
--@include shared/_arguments
keys_are(2)
arguments_are(0, 0, 1000, 2)
for i = 2, #ARGV, 2 do whole_or_none('receipt', ARGV[i], 0, 9007199254740991) end
end

--@include _reserved
--@include _delete

local words = delete(1)
table.insert(words, 1, words[1] == 'absent' and redis.call('EXISTS', attributes) == 0 and 'not_found' or 'ok')
return words
