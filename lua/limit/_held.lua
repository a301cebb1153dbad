-- held: a limit that is held allows nothing before `hold`. No longer than `hold_ms` from now on, should the clock step back.
-- needs: stored
local function held_until(hold, hold_ms, now_ms)
  hold, hold_ms = stored(hold), stored(hold_ms)
  return hold and math.min(hold, now_ms + (hold_ms or 0)) or 0
end
