-- all_of(key) -> every field and value of a hash that is small. HGETALL would let users of the script read whole queues.
-- needs:
local function all_of(key)
  local items, cursor = {}, '0'
  repeat
    local reply = redis.call('HSCAN', key, cursor, 'COUNT', 1000)
    cursor = reply[1]
    for _, item in ipairs(reply[2]) do items[#items + 1] = item end
  until cursor == '0'
  return items
end
