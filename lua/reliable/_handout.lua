-- handout: give ids to the caller; each is stamped later than all before, so pending ones keep the order of delivery.
-- `handed` collects id, content, deliveries and stamp of each; `token`, unless it is '', names their holder.
-- needs: messages tokens delivered unacked at count_of is_id ntokens nunacked last
local function hand_some(ids, handed, token)
  local contents = redis.call('HMGET', messages, unpack(ids))
  local counts = nunacked > 0 and redis.call('HMGET', unacked, unpack(ids)) or {}
  local stamped, held = {}, {}
  for i, id in ipairs(ids) do
    last = math.max(at, last + 1 / 2048)
    local stamp = string.format('%.17g', last)
    stamped[#stamped + 1], stamped[#stamped + 2] = stamp, id
    held[#held + 1], held[#held + 2] = id, token
    local deliveries = count_of(counts[i]) + 1
    handed[#handed + 1] = {id = id, content = contents[i] or '', deliveries = deliveries, stamp = stamp}
  end
  redis.call('ZADD', delivered, unpack(stamped))
  if token ~= '' then
    redis.call('HSET', tokens, unpack(held))
  elseif ntokens > 0 then
    redis.call('HDEL', tokens, unpack(ids))
  end
end

-- An entry that is not an id could never be acknowledged: another program wrote it, and it is dropped.
local function hand_out(named, handed, token)
  local ids = {}
  for _, id in ipairs(named) do
    if is_id(id) then ids[#ids + 1] = id end
  end
  for first = 1, #ids, 1000 do
    hand_some({unpack(ids, first, math.min(#ids, first + 999))}, handed, token)
  end
end
