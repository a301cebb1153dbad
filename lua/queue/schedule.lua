#!lua flags=allow-oom
--[[
schedule: store, pause, resume or remove one schedule of a queue. A definition with other times starts now: earlier
ticks aren't made up.

KEYS
  schedules:hash ticks:hash meta:hash events:stream tick_log:list
ARGV
  now         epoch ms, or '' for the server's clock
  verb        'declare': by a worker's code; 'add': only stored here; 'pause' | 'resume' | 'remove'
  name        1-256 bytes
  definition  JSON, up to 64 KiB; '' for the last three
RETURNS  {'declared' | 'added', last tick} | {'paused' | 'resumed' | 'removed' | 'same' | 'unknown' | 'full'}
         | {'taken', definition}: a worker declares a schedule of this name
COST     O(1)
WRITES   nothing for 'same', 'unknown', 'full' and 'taken'
]]
local schedules, ticks, meta, events, tick_log = unpack(KEYS)
local now, verb, name, definition = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(4)
--@include _stored
one_of('verb', verb, 'declare', 'add', 'pause', 'resume', 'remove')
--@include _text
if name == '' or #name > 256 or not is_text(name) then refuse('name', '1 to 256 bytes of UTF-8 without control characters') end
if #definition > 65536 then refuse('definition', '64 KiB at most') end
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _schedules
local MAX_COUNT = 1000
-- While a release is rolled out, old and new workers replace each other's times just after each tick. For this long
-- after its time a tick still counts as one of the new times.
local DECLARED_MS = 2000
local known, kept = schedule_state(name), redis.call('HGET', schedules, name)
probe('LLEN', tick_log)

-- Expression, interval, zone and bounds of a definition.
local function times_of(text)
  local is_read, told = pcall(cjson.decode, text)
  if not is_read or type(told) ~= 'table' then return text end
  return table.concat({tostring(told.cron or ''), tostring(told.every_ms or 0), tostring(told.tz or ''), tostring(told.start_ms or 0),
    tostring(told.end_ms or 0), tostring(told.times or 0)}, '\31')
end

if verb == 'declare' or verb == 'add' then
  -- A letter before the definition says where it comes from.
  local whole_text = (verb == 'declare' and 'c' or 'a') .. definition
  if verb == 'add' and kept and string.sub(kept, 1, 1) == 'c' then return {'taken', string.sub(kept, 2)} end
  if not kept and redis.call('HLEN', schedules) >= MAX_COUNT then return {'full'} end
  if kept == whole_text and known.last then return {'same'} end
  local last = known.last or now_ms
  if kept and times_of(string.sub(kept, 2)) ~= times_of(definition) then
    last = math.max((last_tick(known, now_ms)), now_ms - (verb == 'declare' and DECLARED_MS or 0))
  end
  redis.call('HSET', schedules, name, whole_text)
  if last ~= known.last then keep_tick(name, known, last, known.mid) end
  return {verb == 'declare' and 'declared' or 'added', string.format('%.0f', last)}
end
if not kept and not known.last then return {'unknown'} end
if verb == 'remove' then
  redis.call('HDEL', schedules, name)
  redis.call('HDEL', ticks, name)
  return {'removed'}
end
if known.paused == (verb == 'pause') then return {'same'} end
known.paused = verb == 'pause'
-- Ticks missed during a pause aren't made up.
keep_tick(name, known, math.max(now_ms, (last_tick(known, now_ms))), known.mid)
return {verb == 'pause' and 'paused' or 'resumed'}
