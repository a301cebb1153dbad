-- held: a held limit allows no start before `hold`, which is at most `hold_ms` ahead, in case the clock steps back.
-- needs: stored
local function held_until(hold, hold_ms, now_ms)
  hold, hold_ms = stored(hold), stored(hold_ms)
  return hold and math.min(hold, now_ms + (hold_ms or 0)) or 0
end
