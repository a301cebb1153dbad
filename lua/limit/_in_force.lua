-- in_force: a limit set on the server overrides the limit in programs.
-- needs: settings stored
local function in_force(most, span_ms)
  local set_most, set_span = unpack(redis.call('HMGET', settings, 'most', 'span_ms'))
  set_most, set_span = stored(set_most), stored(set_span)
  if not set_most or set_most < 1 or (span_ms and not (set_span and set_span >= 1)) then return most, span_ms end
  return math.floor(set_most), span_ms and math.floor(set_span)
end
