#!lua
--[[
retried: note that members are about to be revived, so that the flow isn't over while they run.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  step  whose members they are
  then up to 1,000 numbers of members
RETURNS  {how many of them had ended without being done, and weren't retried before}
COST     O(members)
WRITES   of all keys what changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, step = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(2, 0, 1000)
whole_or_none('now', now, 0, 253402300799999)
for i = 3, #ARGV do whole('number', ARGV[i], 0, 9999999) end
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress

local now_ms, flow, count = time_ms(now), read_flow(), 0
local s = flow and step_of(step)
if not s or flow.state == 'cancelled' then return {0} end
note(s)
for i = 3, #ARGV do
  local bit = bit_of(s, tonumber(ARGV[i]))
  if bit and redis.call('GETBIT', ended, bit) == 1 and redis.call('GETBIT', done, bit) == 0
    and redis.call('SETBIT', retried, bit, 1) == 0 then
    redis.call('HDEL', failed, step .. ':' .. ARGV[i])
    count = count + 1
  end
end
if count > 0 then
  s.nretried, flow.retried = s.nretried + count, flow.retried + count
  recount(flow, s, now_ms)
  settle(flow, now_ms)
  write_flow(flow)
  keep_or_expire(flow)
end
return {count}
