-- dequeue_rate: limits of a rate on the starts of a key.
-- needs:
-- Burst, and µs between starts. A tenth may start immediately, the rest at an even pace, so that no span of the rate
-- ever holds more than it allows: burst + span / interval - 1. Moments are cut to ms, so the span is 1 ms longer.
local function dequeue_rate(rule)
  local starts, span_ms = rule[2], rule[3]
  if not (starts and span_ms and starts >= 1 and span_ms >= 1) then return 1, nil end
  local burst = math.max(1, math.floor(starts / 10))
  return burst, math.ceil((span_ms + 1) * 1000 / (starts - burst + 1))
end
