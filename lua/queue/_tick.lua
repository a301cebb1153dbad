-- tick: checks that the scripts of ticks share.
-- needs: ticks tick_log one_of whole refuse is_text LATEST_MS MAX_MS MAX_MID_LENGTH now_ms tick keep_tick log_tick

-- -> tick_ms, after_ms, due_ms and missed as numbers.
local function tick_arguments(name, tick_ms, after_ms, due_ms, overlap, missed, mid)
  one_of('overlap', overlap, 'skip', 'queue', 'allow', 'cancel', 'miss', 'run')
  if name == '' or #name > 256 or not is_text(name) then refuse('name', '1 to 256 bytes of UTF-8 without control characters') end
  if mid == '' or #mid > MAX_MID_LENGTH or not is_text(mid) or string.byte(mid) == 126 then
    refuse('mid', '1 to 512 bytes of UTF-8 without control characters, and without ~ in front')
  end
  return whole('tick_ms', tick_ms, 0, LATEST_MS), whole('after_ms', after_ms, 0, LATEST_MS),
    whole('due_ms', due_ms, 0, LATEST_MS), whole('missed', missed, 0, MAX_MS)
end

-- -> the script's reply if the tick isn't accepted. An unknown schedule, or one whose last tick is in the future,
-- starts now.
local function untaken(name, known, last, clock, tick_ms, after_ms, due_ms)
  if not known.last or clock then
    tick()
    keep_tick(name, known, now_ms, known.mid)
    if clock then log_tick(name, now_ms, 0, 'clock', 0, '') end
    return {clock and 'clock' or 'new', string.format('%.0f', now_ms)}
  end
  if known.paused then return {'paused', ''} end
  if after_ms ~= last or tick_ms <= last then return {'exists', string.format('%.0f', last)} end
  if math.max(tick_ms, due_ms) > now_ms then return {'early', string.format('%.0f', now_ms)} end
end
