-- schedules: a schedule's stored state, `last tick,p if it is paused,mid of its last run`, and the log of its ticks.
-- needs: ticks tick_log stored LATEST_MS
local MAX_LOGGED, CLOCK_MS = 1000, 60000

local function schedule_state(name)
  local last, paused, mid = string.match(redis.call('HGET', ticks, name) or '', '^(%d+),(p?),(.*)$')
  return {last = stored(last, LATEST_MS, nil), paused = paused == 'p', mid = mid or ''}
end

-- -> the last tick, and whether the clock has stepped back before it. A small step is waited for.
local function last_tick(known, now_ms)
  local last = known.last or now_ms
  if last > now_ms + CLOCK_MS then return now_ms, true end
  return last, false
end

local function keep_tick(name, known, last, mid)
  redis.call('HSET', ticks, name, string.format('%.0f', last) .. ',' .. (known.paused and 'p' or '') .. ',' .. mid)
end

local function log_tick(name, tick_ms, late_ms, outcome, missed, mid)
  redis.call('LPUSH', tick_log, table.concat(
    {name, string.format('%.0f', tick_ms), string.format('%.0f', late_ms), outcome, string.format('%.0f', missed), mid}, '\31'))
  redis.call('LTRIM', tick_log, 0, MAX_LOGGED - 1)
end
