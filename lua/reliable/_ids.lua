-- ids: the message ids from an argument on, each once; or nothing and why not.
-- needs:
local function ids_from(position)
  local ids, met = {}, {}
  for i = position, #ARGV do
    if #ARGV[i] > 40 or not string.match(ARGV[i], '^%d+%-%d+$') then
      local shown = string.gsub(string.sub(ARGV[i], 1, 40), '[^%g ]', '?')
      return nil, "ERR '" .. shown .. "' is no message id; they look like 1601155608777-1"
    end
    if not met[ARGV[i]] then ids[#ids + 1] = ARGV[i] end
    met[ARGV[i]] = true
  end
  if #ids == 0 then return nil, 'ERR wrong number of arguments: no message id' end
  return ids
end
