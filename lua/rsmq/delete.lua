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
WRITES   nothing for a stale message; fields without a message are removed and count as absent
]]
local messages, attributes = unpack(KEYS)

local find, call = string.find, redis.call
-- One message by its last receiver, as usual. The rest of the script handles all other calls, and leftovers of this.
if #KEYS == 2 and #ARGV == 2 then
  local id, receipt = ARGV[1], ARGV[2]
  if #id > 9 and #receipt <= 6 and find(receipt, '^[1-9]%d*$') then
    local received = id .. ':rc'
    if call('HGET', attributes, received) == receipt and call('ZREM', messages, id) == 1 then
      call('HDEL', attributes, id, received, id .. ':fr')
      return {'ok', 'deleted'}
    end
  end
end

--@include shared/_arguments
keys_are(2)
arguments_are(0, 0, 1000, 2)
for i = 2, #ARGV, 2 do whole_or_none('receipt', ARGV[i], 0, 9007199254740991) end

--@include _reserved
--@include _delete

local words = delete(1)
table.insert(words, 1, words[1] == 'absent' and redis.call('EXISTS', attributes) == 0 and 'not_found' or 'ok')
return words
