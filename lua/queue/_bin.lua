-- bin: messages that an operation took out of the queue, until they can no longer be put back. A hash: a letter and a mid or a dead id
-- -> its parts; `bytes` -> how many bytes it holds.
-- needs: bin count_of
local LETTERS = {waiting = 'w', dead = 'd', revived = 'r', edited = 'e'}
local PARTS = {waiting = 8, dead = 3, revived = 3, edited = 5}

local function operation(op)
  if not op or #op > 64 or not string.find(op, '^[%w_.-]+$') then
    refuse('op', '1 to 64 letters, digits, dots, hyphens and underscores')
  end
end

-- Each part preceded by its length, '-' for a missing part.
local function joined(parts, n)
  local row = {}
  for i = 1, n do row[i] = parts[i] and #parts[i] .. ':' .. parts[i] or '-' end
  return table.concat(row)
end

-- -> the parts, false for a missing part; nothing for another program's value
local function parts_in(text, n)
  local parts, at = {}, 1
  for i = 1, n do
    local length, from = string.match(text, '^(%d+):()', at)
    if length and #length <= 8 and from + length - 1 <= #text then
      parts[i], at = string.sub(text, from, from + length - 1), from + length
    elseif string.sub(text, at, at) == '-' then
      parts[i], at = false, at + 1
    else
      return
    end
  end
  if at == #text + 1 then return parts end
end

local MAX_IN_BIN, MAX_BIN_BYTES = 10000, 16777216
local in_bin, bin_bytes, bin_changed = redis.call('HLEN', bin), count_of(bin, 'bytes'), false

-- -> whether there was room for it
local function keep(place, id, parts)
  local text = joined(parts, PARTS[place])
  if in_bin > MAX_IN_BIN or bin_bytes + #id + #text > MAX_BIN_BYTES then return false end
  redis.call('HSET', bin, LETTERS[place] .. id, text)
  in_bin, bin_bytes, bin_changed = in_bin + 1, bin_bytes + #id + #text, true
  return true
end

-- After a change of the bin. life_ms: how long it is kept, nil = unchanged
local function close_bin(life_ms)
  if not bin_changed then return end
  redis.call('HSET', bin, 'bytes', string.format('%.0f', math.max(0, bin_bytes)))
  if redis.call('HLEN', bin) == 1 then
    redis.call('DEL', bin)
  elseif life_ms then
    redis.call('PEXPIRE', bin, life_ms)
  end
end

-- Remove returned messages.
local function drop(place, id, size)
  redis.call('HDEL', bin, LETTERS[place] .. id)
  bin_bytes, bin_changed = bin_bytes - size, true
end
