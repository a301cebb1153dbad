-- held: of some ids, the delivered ones; if a token is named, those held under it.
-- needs: tokens delivered
local function held_of(ids, token)
  local held = {}
  for first = 1, #ids, 1000 do
    local some = {unpack(ids, first, math.min(#ids, first + 999))}
    local stamps = redis.call('ZMSCORE', delivered, unpack(some))
    local holders = token and redis.call('HMGET', tokens, unpack(some)) or {}
    for i, id in ipairs(some) do
      if stamps[i] and (not token or holders[i] == token) then held[#held + 1] = id end
    end
  end
  return held
end
