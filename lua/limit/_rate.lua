-- rate: how a rate is stored. A rate of up to 10,000 per span is a ring of the last starts: it is exact, and all may
-- start together. A higher rate is one moment (GCRA): a twentieth may start immediately, and the rest is spread over
-- the span.
-- needs:
local IN_RING = 10000

local function at_once(most) return most <= IN_RING and most or math.floor(most / 20) end

-- How far a start moves the moment, us.
local function spread_us(cost, most, window_ms)
  return math.ceil(cost * window_ms * 1000 / (most - at_once(most)))
end
