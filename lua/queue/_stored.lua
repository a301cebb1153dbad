-- stored: read a number from the server's keys. Other programs may have written any bytes there, so nothing is trusted.
-- needs:
local MAX_LOCK_MS, MAX_MS, LATEST_MS = 86400000, 3153600000000, 253402300799999
local MAX_MID_LENGTH, MAX_BYTES = 512, 4194304

-- The number in `text`; `default` if it is not a number from 0 to `most`. NaN fails both comparisons.
local function stored(text, most, default)
  local number = tonumber(text)
  if number and number >= 0 and number <= most then return number end
  return default
end
