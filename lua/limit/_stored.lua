-- stored: read a number from a key; nil if it is damaged, so that no value can stop a limit.
-- needs:
local function stored(value)
  local number = tonumber(value)
  return number and number >= 0 and number <= 9007199254740991 and number or nil
end

local function text(number) return string.format('%.0f', number) end
