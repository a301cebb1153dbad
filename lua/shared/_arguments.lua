-- arguments: reject invalid arguments before a script's first write, because programs in any language call the scripts.
-- needs:
local function refuse(name, must)
  error({err = 'ERR ' .. name .. ' must be ' .. must})
end

local function keys_are(least, most)
  if #KEYS < least or #KEYS > (most or least) then refuse('the number of keys', least .. ', not ' .. #KEYS) end
end

-- Require this many arguments, followed by `least` to `most` groups of `width`.
local function arguments_are(fixed, least, most, width)
  local groups = (#ARGV - fixed) / (width or 1)
  if groups % 1 ~= 0 or groups < (least or 0) or groups > (most or 0) then
    refuse('the number of arguments', 'as the script says, not ' .. #ARGV)
  end
end

-- Only digits, so that every command reads the text as the same number.
local function whole(name, value, least, most)
  local number = value and #value <= 16 and string.find(value, '^%-?%d+$') and tonumber(value)
  if not number or number < least or number > most then
    refuse(name, string.format('a whole number from %.0f to %.0f', least, most))
  end
  return number
end

-- '' passes as nil.
local function whole_or_none(name, value, least, most)
  if value == '' then return nil end
  return whole(name, value, least, most)
end

local function one_of(name, value, ...)
  for _, allowed in ipairs({...}) do
    if value == allowed then return value end
  end
  refuse(name, 'one of ' .. table.concat({...}, ', '))
end

-- Reading a key of another type raises, here while nothing is written yet. `command` reads one key in O(1).
local function probe(command, ...)
  for _, key in ipairs({...}) do redis.call(command, key) end
end
