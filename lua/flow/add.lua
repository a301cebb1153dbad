#!lua
--[[
add: add steps to a running flow. Existing steps stay unchanged.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of the expected run of the flow; '' = any run
  then up to 1,000 groups as in create
RETURNS  {'added', how many are new}; {'closed', state} if the flow doesn't run; {'conflict', ''} if a stored step differs,
         {'full', ''} beyond 10,000 steps
COST     O(steps + edges)
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, run = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(2, 0, 1000, 7)
whole_or_none('now', now, 0, 253402300799999)
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress
--@include _rows

local now_ms, flow = time_ms(now), read_flow(run)
local fresh = new_rows(3, step_of)
if not flow then return {'closed', ''} end
if flow.state ~= 'running' or flow.over > 0 then return {'closed', flow.state} end
if not fresh then return {'conflict', ''} end
if redis.call('HLEN', steps) + #fresh > 2 * MAX_OF_A_FLOW then return {'full', ''} end
local bits, subs = keep_rows(fresh, flow.bits)
flow.bits, flow.subs = bits, flow.subs + subs
local candidates = {}
for i, at in ipairs(fresh) do candidates[i] = ARGV[at] end
go_on(flow, candidates, {}, now_ms)
settle(flow, now_ms)
write_flow(flow)
keep_or_expire(flow)
return {'added', #fresh}
