-- options: words that begin at an argument, each at most once, up to the first word that is not an option; or nil.
-- `known` says per word whether a 'number' or a 'text' follows, or nothing (true). -> options, next position
-- needs:
local MAX_WORD_LENGTH = 512

local function whole_word(text)
  return text and #text < 16 and string.match(text, '^%d+$') and tonumber(text) or nil
end

local function read_options(known, position)
  local options = {}
  while ARGV[position] and known[string.upper(ARGV[position])] do
    local word, value = string.upper(ARGV[position]), true
    local kind = known[word]
    if kind == 'number' then value = whole_word(ARGV[position + 1]) end
    if kind == 'text' then value = ARGV[position + 1] end
    if options[word] or not value or value == '' or (kind == 'text' and #value > MAX_WORD_LENGTH) then return nil end
    options[word] = value
    position = position + (kind == true and 1 or 2)
  end
  return options, position
end
