-- delete: delete messages by pairs of id and receipt, starting at ARGV[first], unless they were received again; return
-- their words.
-- needs: messages attributes is_setting
local function delete(first)
  local ids, asked, words, gone, fields, seen = {}, {}, {}, {}, {}, {}
  for i = first, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
    asked[#asked + 1], asked[#asked + 2] = ARGV[i], ARGV[i] .. ':rc'
  end
  if not ids[1] then return words end
  local scores = redis.call('ZMSCORE', messages, unpack(ids))
  local values = redis.call('HMGET', attributes, unpack(asked))
  for i, id in ipairs(ids) do
    local receipt, body, received = ARGV[first + 2 * i - 1], values[2 * i - 1], values[2 * i]
    local there = scores[i] and not seen[id] and (#id > 9 or not is_setting(id))
    words[i] = 'absent'
    if there and receipt ~= '' and (received or '0') ~= receipt then
      words[i] = 'stale'
    elseif there then
      gone[#gone + 1], seen[id] = id, true
      if body or received then words[i] = 'deleted' end
    end
    -- Leftovers of an absent message are also deleted, if its name is surely an id.
    if seen[id] or (words[i] == 'absent' and #id == 32) then
      local n = #fields
      fields[n + 1], fields[n + 2], fields[n + 3] = id, id .. ':rc', id .. ':fr'
    end
  end
  if gone[1] then redis.call('ZREM', messages, unpack(gone)) end
  if fields[1] then redis.call('HDEL', attributes, unpack(fields)) end
  return words
end
