#!lua
--[[
move: messages to another queue, visible there at once under the same ids; their receipts begin anew.

KEYS
  messages:zset attributes:hash to_messages:zset to_attributes:hash
ARGV
  now       epoch microseconds, or '' for the server's clock
  channel   of the other queue, to publish the number of its messages on; '' = none
  then two per message: id, receipt (times received when it was handed out; '' = whoever has it now)
RETURNS  {'ok', per message: 'moved' | 'absent' | 'stale'} | {'not_found'}: the other queue
COST     O(messages moved x log messages)
WRITES   nothing for one that is absent or stale, or if the other queue isn't there
]]
local messages, attributes, to_messages, to_attributes = unpack(KEYS)
local now, channel = unpack(ARGV, 1, 2)

--@include _clock
--@include _held

local vt, delay, maxsize, total = unpack(redis.call('HMGET', to_attributes, 'vt', 'delay', 'maxsize', 'totalsent'))
if not (vt and delay and maxsize) then return {'not_found'} end
redis.call('ZCARD', to_messages)

local reply, moved = {'ok'}, 0
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local body, word = redis.call('HGET', attributes, id), refusal(id, ARGV[i + 1])
  if not word and body then
    redis.call('ZADD', to_messages, now_ms, id)
    redis.call('HSET', to_attributes, id, body)
    redis.call('ZREM', messages, id)
    redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr')
    word, moved = 'moved', moved + 1
    if channel ~= '' then redis.call('PUBLISH', channel, redis.call('ZCARD', to_messages)) end
  end
  reply[#reply + 1] = word or 'absent'
end
-- A total that is no whole number would refuse HINCRBY, after the messages were moved.
local sent = tonumber(string.match(total or '', '^%d+') or 0)
if moved > 0 then redis.call('HSET', to_attributes, 'totalsent', string.format('%.0f', sent + moved)) end
return reply
