#!lua
--[[
create: store a whole flow, which waits for its begin. The same flow again is the same.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  definition  a hash of what the flow means
  home  name of the queue whose flow-outbox takes what is said to the flow
  keep_ms  how long it is kept once it is over
  parent  `flow.step` that the flow is the step of, or ''
  life_ms  how long it waits for its begin
  marks  queue and id of an entry of its outbox, once or more, joined by 0x1f: what is said there up to that entry is for
         an earlier flow of this id
  then up to 1,000 groups: name, kind, queue, source, edges, options, call. Kinds: step, map, wait, timer, flow. Edges:
  `step:done`, `step:ended` or `step:failed` of steps before it, with commas. Source: of a map `stream`, `items` or
  `=step`; of a flow its id; else ''
RETURNS  {'created', 'open'}; {'same', state}; {'over', state} of a flow that is over; {'conflict', state} of another definition
COST     O(steps + edges)
WRITES   of all keys what changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, definition, home, keep_ms, parent, life_ms, marks = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(7, 0, 1000, 7)
whole_or_none('now', now, 0, 253402300799999)
keep_ms = whole('keep_ms', keep_ms, 1, 3153600000000)
life_ms = whole('life_ms', life_ms, 1, 3153600000000)
if definition == '' or #definition > 128 then refuse('definition', '1-128 bytes') end
if home == '' or #home > 512 then refuse('home', 'the name of a queue') end
if parent ~= '' and not string.find(parent, '^[%w_@+-]+:[%w_:@+-]+%.[%w_-]+$') then refuse('parent', '`flow.step`') end
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress
--@include _rows
--@include _marks
marks = checked_marks(marks)

local now_ms, flow = time_ms(now), read_flow()
if flow then
  local same = redis.call('HGET', meta, 'definition') == definition
  if same and flow.state == 'open' then
    redis.call('HDEL', meta, 'stamp')
    expire_all(life_ms)
  end
  return {not same and 'conflict' or flow.over > 0 and 'over' or 'same', flow.state}
end
-- Keys without a flow are what is left of damage.
local fresh = new_rows(8, function() return false end)

redis.call('DEL', meta, steps, calls, items, done, ended, retried, failed, results, todo)
redis.call('HSET', meta, 'state', 'open', 'definition', definition, 'home', home, 'keep', text(keep_ms), 'parent', parent,
  'created', text(now_ms))
put_marks(marks)
redis.call('HSET', meta, 'said', redis.call('HGET', meta, MARK .. home) or '')
local bits, subs = keep_rows(fresh, 0)
redis.call('HSET', meta, 'bits', text(bits), 'subs', text(subs))
expire_all(life_ms)
return {'created', 'open'}
