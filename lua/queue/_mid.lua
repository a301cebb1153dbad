-- mid: whether bytes can be a mid: text, and not too long.
-- needs: is_text MAX_MID_LENGTH
local function is_mid(bytes) return #bytes <= MAX_MID_LENGTH and is_text(bytes) end
