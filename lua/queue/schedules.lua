#!lua flags=no-writes
--[[
schedules: return all schedules of a queue, their last ticks, and the newest entries of the log of ticks.

KEYS
  schedules:hash ticks:hash tick_log:list
ARGV
  now    epoch ms, or '' for the server's clock
  limit  entries of the log, 0-1000
RETURNS  {now, {per schedule: name, definition with a letter before it, 'c' for code or 'a' for added},
         {per schedule: name, `last tick,p if it is paused,mid of its last run`}, {per entry, newest first:
         name, tick, ms late, outcome, ticks missed before it and mid, joined by 0x1f}}
COST     O(schedules + limit)
WRITES   nothing
]]
local schedules, ticks, tick_log = unpack(KEYS)
local now, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(2)
--@include _stored
local given = whole_or_none('now', now, 0, LATEST_MS)
limit = whole('limit', limit, 0, 1000)
--@include shared/_clock
--@include shared/_all_of
local logged = limit > 0 and redis.call('LRANGE', tick_log, 0, limit - 1) or {}
return {
  string.format('%.0f', time_ms(given)), all_of(schedules), all_of(ticks), logged,
}
