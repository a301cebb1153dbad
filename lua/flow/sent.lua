#!lua flags=allow-oom
--[[
sent: remove items that were sent, and return the remaining items.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of the expected run of the flow; '' = any run
  limit  maximum number of items to return
  then up to 250 groups: step, stamp
RETURNS  as apply
COST     O(sent items)
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, run, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(3, 0, 250, 2)
whole_or_none('now', now, 0, 253402300799999)
limit = whole('limit', limit, 1, 250)
for i = 4, #ARGV, 2 do whole('stamp', ARGV[i + 1], 0, 9007199254740991) end
probe('HLEN', meta, steps, calls, items, todo)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress

local now_ms, flow = time_ms(now), read_flow(run)
if not flow then return {'', 0, 0, ''} end
for i = 4, #ARGV, 2 do
  local name, stamp = ARGV[i], ARGV[i + 1]
  local kind, stored = string.match(redis.call('HGET', todo, name) or '', '^(%l+),(%d+),')
  if stored == stamp then
    redis.call('HDEL', todo, name)
    local s = kind == 'map' and step_of(name)
    if s and s.source == 'items' then
      for chunk = 0, s.chunks - 1 do redis.call('HDEL', items, name .. ':' .. text(chunk)) end
    end
  end
end
settle(flow, now_ms)
write_flow(flow)
local reply = answer(flow, 0, limit)
keep_or_expire(flow)
return reply
