#!lua
--[[
move: move messages to another queue, immediately visible under the same ids; their receipts restart.

KEYS
  messages:zset attributes:hash to_messages:zset to_attributes:hash
ARGV
  now       epoch microseconds, or '' for the server's clock
  channel   of the other queue, to publish the number of its messages on; '' = none
  then two per message: id, receipt (times received when it was handed out; '' = regardless of who has it)
RETURNS  {'ok', per message: 'moved' | 'absent' | 'stale'} | {'not_found'}: the other queue
COST     O(messages moved x log messages)
WRITES   nothing for an absent or stale message, or if the other queue doesn't exist
]]
local messages, attributes, to_messages, to_attributes = unpack(KEYS)
local now, channel = unpack(ARGV, 1, 2)

--@include shared/_arguments
keys_are(4)
arguments_are(2, 0, 1000, 2)
if messages == to_messages or attributes == to_attributes then refuse('the other queue', 'another') end
whole_or_none('now', now, 0, 9007199254740991)
--@include _channel
check_channel(channel)
for i = 4, #ARGV, 2 do whole_or_none('receipt', ARGV[i], 0, 9007199254740991) end
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved
--@include _held

local to_vt, to_delay, to_maxsize, to_total = unpack(redis.call('HMGET', to_attributes, 'vt', 'delay', 'maxsize', 'totalsent'))
if not (to_vt and to_delay and to_maxsize) then return {'not_found'} end
probe('ZCARD', messages, to_messages)

local reply, moved = {'ok'}, 0
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local body, word = redis.call('HGET', attributes, id), refusal(id, ARGV[i + 1])
  if not word and body and not is_setting(id) then
    redis.call('ZADD', to_messages, now_ms, id)
    redis.call('HSET', to_attributes, id, body)
    redis.call('ZREM', messages, id)
    redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr')
    word, moved = 'moved', moved + 1
    if channel ~= '' then redis.call('PUBLISH', channel, redis.call('ZCARD', to_messages)) end
  end
  reply[#reply + 1] = word or 'absent'
end
if moved > 0 then redis.call('HSET', to_attributes, 'totalsent', added(to_total, moved)) end
return reply
