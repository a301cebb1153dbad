-- mid: whether bytes can be a mid: text, and not too long.
-- needs: is_text LONGEST_MID
local function is_mid(bytes) return #bytes <= LONGEST_MID and is_text(bytes) end
