-- bits: commands on the bits of strings, and on how long keys live.
local R = ...
local command, commands, look, own, integer, fail = R.command, R.commands, R.look, R.own, R.integer, R.fail

local function place_of(text)
  local at = integer(text)
  if at < 0 or at > 4294967295 then fail('bit offset is not an integer or out of range') end
  return math.floor(at / 8) + 1, 2 ^ (7 - at % 8)
end

local function bit_in(text, byte, weight) return math.floor((string.byte(text, byte) or 0) / weight) % 2 end

command('GETBIT', 'first', 2, 2, function(a)
  local byte, weight = place_of(a[2])
  local value = look(a[1], 'string')
  return bit_in(value and value.s or '', byte, weight)
end)

command('SETBIT', 'first', 3, 3, function(a)
  local byte, weight = place_of(a[2])
  if a[3] ~= '0' and a[3] ~= '1' then fail('bit is not an integer or out of range') end
  local value = look(a[1], 'string')
  local text = value and value.s or ''
  text = text .. string.rep('\0', byte - #text)
  local before = bit_in(text, byte, weight)
  local changed = string.byte(text, byte) + (integer(a[3]) - before) * weight
  value = own(a[1], 'string')
  value.s, value.n = string.sub(text, 1, byte - 1) .. string.char(changed) .. string.sub(text, byte + 1), 1
  return before
end)

-- Of BITFIELD the part that scripts use: SET of unsigned numbers, each as its bits one by one.
command('BITFIELD', 'first', 4, nil, function(a, count)
  local reply = {}
  for i = 2, count, 4 do
    local width = tonumber(string.match(a[i + 1] or '', '^u(%d+)$'))
    if a[i] ~= 'SET' or not width or width > 32 then fail('BITFIELD other than SET of u1 to u32') end
    local was, value = 0, integer(a[i + 3])
    for place = 0, width - 1 do
      local on = math.floor(value / 2 ^ (width - 1 - place)) % 2
      was = 2 * was + commands.SETBIT.run({a[1], R.text_of(integer(a[i + 2]) + place), R.text_of(on)}, 3)
    end
    reply[#reply + 1] = was
  end
  return reply
end)

command('GETRANGE', 'first', 3, 3, function(a)
  local value = look(a[1], 'string')
  local text = value and value.s or ''
  local start, stop = integer(a[2]), integer(a[3])
  if start < 0 and stop < 0 and start > stop then return '' end
  if start < 0 then start = math.max(0, #text + start) end
  if stop < 0 then stop = math.max(0, #text + stop) end
  return string.sub(text, start + 1, math.min(stop + 1, #text))
end)

command('PERSIST', 'first', 1, 1, function(a)
  local value = look(a[1])
  if not value or not value.px then return 0 end
  own(a[1], value.t).px = nil
  return 1
end)
