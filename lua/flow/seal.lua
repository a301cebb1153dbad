#!lua
--[[
seal: record that all chunks of a map are enqueued and no more will follow.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of the expected run of the flow; '' = any run
  step  the map
  chunks  how many chunks it has
RETURNS  {'ok', state}; {'sealed', chunks} if it was sealed with another number; {'other', chunks} if another number
         is reserved; {'closed', state} if the flow has ended, was cancelled or is gone
COST     O(waiting steps)
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, run, step, chunks = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(4)
whole_or_none('now', now, 0, 253402300799999)
chunks = whole('chunks', chunks, 0, 40000)
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress

local now_ms, flow = time_ms(now), read_flow(run)
local s = flow and step_of(step)
if flow and (not s or s.kind ~= 'map') then refuse('step', 'a map') end
if not flow then return {'closed', ''} end
if s.chunks ~= chunks then return {s.sealed == 1 and 'sealed' or 'other', s.chunks} end
if s.sealed == 1 then return {'ok', flow.state} end
if flow.over > 0 or flow.state == 'cancelled' then return {'closed', flow.state} end
note(s)
s.sealed = 1
recount(flow, s, now_ms)
go_on(flow, {}, {step}, now_ms)
settle(flow, now_ms)
write_flow(flow)
keep_or_expire(flow)
return {'ok', flow.state}
