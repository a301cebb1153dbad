#!lua
--[[
retried: record that members are about to be revived, so that the flow doesn't end while they run.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of the expected run of the flow; '' = any run
  step  the step of the members
  stamp  of the item to send, 0 for none
  cursor  with a stamp: all of the retry's members before this were revived
  mark  id of an entry of the outbox of the step's queue: earlier ends other than done belong to runs
        before this retry; '' for none
  then up to 1,000 numbers of members
RETURNS  {how many of the members had ended without being done, and weren't retried before}; {-1} if no item has that
         stamp, because another drainer has sent it
COST     O(members)
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, run, step, stamp, cursor, mark = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(6, 0, 1000)
whole_or_none('now', now, 0, 253402300799999)
stamp = whole('stamp', stamp, 0, 9007199254740991)
cursor = whole('cursor', cursor, 0, 10000000)
if mark ~= '' and (#mark > 40 or not string.find(mark, '^%d+%-%d+$')) then refuse('mark', 'the id of an entry') end
for i = 7, #ARGV do whole('number', ARGV[i], 0, 9999999) end
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress

local now_ms, flow, count = time_ms(now), read_flow(run), 0
local s = flow and step_of(step)
if not s or flow.state == 'cancelled' then return {0} end
if stamp > 0 then
  if string.match(redis.call('HGET', todo, step) or '', '^revive,(%d+),') ~= text(stamp) then return {-1} end
  s.changed = s.revived < cursor
  s.revived = math.max(s.revived, cursor)
end
if mark ~= '' and is_behind(mark, redis.call('HGET', meta, MARK .. step) or '') then redis.call('HSET', meta, MARK .. step, mark) end
note(s)
for i = 7, #ARGV do
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
end
if write_flow(flow) then keep_or_expire(flow) end
return {count}
