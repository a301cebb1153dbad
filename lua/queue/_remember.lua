-- remember: store the end of a cancelled message, for the time named at the beginning of its content.
-- needs: stored MAX_MS count_in now_ms TILDE
local CALL, SIGNED, ENCRYPTED = '^{"remember_ms":(%d+)[,}]', '^jobq%-s1 %S+ %x+\n{"remember_ms":(%d+)[,}]', '^jobq%-e1 %S+ (%d+)\n'

-- given: the caller's time in ms, or nil. -> the longer time; nil for none. Flows keep the ends of their members.
local function remember_ms_of(mid, content, given)
  -- The third byte is r or b: of {"remember_ms" or jobq-.
  local third = string.byte(content, 3)
  if third ~= 114 and third ~= 98 or string.byte(mid) == TILDE then return given end
  local head = string.sub(content, 1, 200)
  local text = string.match(head, CALL) or string.match(head, SIGNED) or string.match(head, ENCRYPTED)
  local own = stored(text, MAX_MS, 0)
  return own >= 1 and math.max(own, given or 0) or given
end

-- `attempts`: text, or false
local function remember(result, attempts, ms)
  redis.call('DEL', result)
  redis.call('RPUSH', result, string.format('{"end":"cancelled","attempt":%d,"at":%d}', count_in(attempts), now_ms))
  redis.call('PEXPIRE', result, string.format('%d', ms))
end
