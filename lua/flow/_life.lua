-- life: how long the keys of a flow are kept.
-- needs:
local function expire_all(life_ms)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, string.format('%.0f', life_ms)) end
end

-- A new key expires together with the others.
local function expire_together(meta)
  local left = redis.call('PTTL', meta)
  if left > 0 then expire_all(left) end
end
