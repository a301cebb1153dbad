#!lua
--[[
enqueue_plain: accept one new message without options. It uses only the keys for that, so it costs the server less
than enqueue.

KEYS
  messages:hash ready:list left_ready:set eoq_backoff:string wake:list meta:hash last_call:string
ARGV
  caller   1-64 printable ASCII characters, the connection's random id
  number   of this call, counted up by the caller
  then mid, of 1-512 printable ASCII characters without ~ in front, and content, 1 MiB at most
RETURNS  {'added', ''} | {'general'}: the call isn't plain, so enqueue must be sent under the same number
COST     O(1)
WRITES   nothing for 'general', nor when memory is full
]]
local messages, ready, left_ready, eoq_backoff, wake, meta, last_call = unpack(KEYS)
local caller, number = unpack(ARGV, 1, 2)
local mid, content = ARGV[3], ARGV[4]

if #KEYS ~= 7 or #ARGV ~= 4 then return {'general'} end
local kept = redis.call('MGET', last_call, eoq_backoff)
local recorded, rests = kept[1], kept[2]
local facts = redis.call('HMGET', meta, 'events', 'max_content', 'plain_until')
local level, longest, plain_until = facts[1], facts[2], facts[3]
-- Numbers without zeros in front are compared as text.
local last = recorded and (string.match(recorded, '^%d+') or number)
if last and (#number < #last or (#number == #last and number <= last)) then return {'general'} end
-- A plain queue has no copies left in ready.
local noted, nwake = not plain_until and redis.call('SCARD', left_ready) > 0, redis.call('LLEN', wake)
if noted or level == 'all' or #mid > 512 or not string.find(mid, '^[ -}][ -~]*$')
  or #content > (tonumber(longest) or -1) or #content > 1048576
  or #caller > 64 or not string.find(caller, '^[!-~]+$') or #number > 15 or not string.find(number, '^[1-9]%d*$')
  or redis.call('HSETNX', messages, mid, content) == 0 then return {'general'} end
-- Where ready has another type, the only write before it is undone.
if not tonumber(redis.pcall('RPUSH', ready, mid)) then
  redis.call('HDEL', messages, mid)
  return {err = 'WRONGTYPE the ready list has another type'}
end
if rests then redis.call('DEL', eoq_backoff) end
if nwake == 0 then redis.call('LPUSH', wake, '1') end
redis.call('SET', last_call, number .. '\30added\31\30', 'PX', '600000')
return {'added', ''}
