#!lua
--[[
create: store a whole flow, which waits until it is begun. Storing the same flow again keeps its run id.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of this run, 1-16 letters and digits, unique for this flow name and id. A sub-flow has its parent's run id
  definition  a hash of the flow's meaning
  home  name of the queue whose flow-outbox receives signals to the flow
  keep_ms  how long the flow is kept after its end
  parent  `flow.run.step` of the step that the flow is, or ''
  life_ms  how long the flow waits to be begun
  then up to 1,000 groups: name, kind, queue, source, edges, options, call. Kinds: step, map, wait, timer, flow. Edges:
  `step:done`, `step:ended` or `step:failed` of steps before it, with commas. Source: of a map `stream`, `items` or
  `=step`; of a flow its id; else ''
RETURNS  {'created', 'open', run}; {'same', state, its run id}; {'over', state, its run id} if it has ended;
         {'conflict', state, its run id} if its definition differs; {'taken', state, its run id, its parent} if it belongs to
         another flow. A flow left by an earlier run of the same parent is replaced, unless it is running
COST     O(steps + edges)
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, run, definition, home, keep_ms, parent, life_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(7, 0, 1000, 7)
whole_or_none('now', now, 0, 253402300799999)
keep_ms = whole('keep_ms', keep_ms, 1, 3153600000000)
life_ms = whole('life_ms', life_ms, 1, 3153600000000)
if #run > 16 or not string.find(run, '^%w+$') then refuse('run', '1-16 letters and digits') end
if definition == '' or #definition > 128 then refuse('definition', '1-128 bytes') end
if home == '' or #home > 512 then refuse('home', 'the name of a queue') end
if parent ~= '' and not string.find(parent, '^[%w_.@+-]+:[%w_:@+-]+%.%w+%.[%w_-]+$') then refuse('parent', '`flow.run.step`') end
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress
--@include _rows

local function without_run(place) return (string.gsub(place, '%.%w+%.', '.')) end
local now_ms, flow = time_ms(now), read_flow()
local is_left = flow and flow.parent ~= parent and without_run(flow.parent) == without_run(parent)
  and (flow.state == 'open' or flow.over > 0)
if flow and not is_left then
  if flow.parent ~= parent then return {'taken', flow.state, flow.run, flow.parent} end
  local same = redis.call('HGET', meta, 'definition') == definition
  if same and flow.state == 'open' then
    redis.call('HDEL', meta, 'stamp')
    expire_all(life_ms)
  end
  return {not same and 'conflict' or flow.over > 0 and 'over' or 'same', flow.state, flow.run}
end
-- Keys without a flow are leftovers of damage.
local fresh = new_rows(8, function() return false end)

redis.call('DEL', meta, steps, calls, items, done, ended, retried, failed, results, todo)
redis.call('HSET', meta, 'state', 'open', 'definition', definition, 'home', home, 'keep', text(keep_ms), 'parent', parent,
  'created', text(now_ms), 'run', run)
local bits, subs = keep_rows(fresh, 0)
redis.call('HSET', meta, 'bits', text(bits), 'subs', text(subs))
expire_all(life_ms)
return {'created', 'open', run}
