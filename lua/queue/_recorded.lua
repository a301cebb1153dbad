-- recorded: the contents of a call's record: words and hand-outs, apart by 0x1e, each list joined by 0x1f. Unusual
-- parts of a hand-out follow its mid after 0x1d.
-- needs:
local function items_of(part)
  local items = {}
  if not part or part == '' then return items end
  for item in string.gmatch(part .. '\31', '([^\31]*)\31') do items[#items + 1] = item end
  return items
end

local function kept_words(kept) return items_of(string.match(kept, '^[^\30]*')) end
local function kept_handed(kept) return items_of(string.match(kept, '^[^\30]*\30(.*)$')) end
