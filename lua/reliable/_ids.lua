-- ids: the message ids that begin at an argument, each once; nil if there is none or an argument is not an id.
-- needs:
local function ids_from(position)
  local ids, met = {}, {}
  for i = position, #ARGV do
    if #ARGV[i] > 40 or not string.match(ARGV[i], '^%d+%-%d+$') then return nil end
    if not met[ARGV[i]] then ids[#ids + 1] = ARGV[i] end
    met[ARGV[i]] = true
  end
  return #ids > 0 and ids or nil
end
