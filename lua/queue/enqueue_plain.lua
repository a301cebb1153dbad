#!lua
--[[
enqueue_plain: accept one new message that asks for nothing. It has no more keys than that takes, so it costs the server
less than enqueue.

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
local recorded = redis.call('GET', last_call)
local level, longest = unpack(redis.call('HMGET', meta, 'events', 'max_content'))
local notes, nwake = redis.call('SCARD', left_ready), redis.call('LLEN', wake)
if notes > 0 or level == 'all' or #mid > 512 or not string.find(mid, '^[ -}][ -~]*$')
  or #content > (tonumber(longest) or -1) or #content > 1048576
  or #caller > 64 or not string.find(caller, '^[!-~]+$') or #number > 15 or not string.find(number, '^%d+$')
  or (recorded and tonumber(number) <= (tonumber(string.match(recorded, '^%d+')) or 1e16))
  or redis.call('HSETNX', messages, mid, content) == 0 then return {'general'} end
-- Where ready has another type, the only write before it is undone.
if not tonumber(redis.pcall('RPUSH', ready, mid)) then
  redis.call('HDEL', messages, mid)
  return {err = 'WRONGTYPE the ready list has another type'}
end
redis.call('DEL', eoq_backoff)
if nwake == 0 then redis.call('LPUSH', wake, '1') end
redis.call('SET', last_call, number .. '\30added\31\30', 'PX', '600000')
return {'added', ''}
