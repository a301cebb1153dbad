-- inputs: common arguments of several of these scripts: numbers within limits, and the id of a claim.
-- needs: refuse
local MAX_COUNT, LATEST_MS, MAX_LEASE_MS = 9007199254740991, 253402300799999, 86400000

local function is_claim_id(text)
  return #text <= 64 and string.find(text, '^[%w_-]+$') ~= nil
end

local function claim_id(text)
  if not is_claim_id(text) then refuse('claim', '1 to 64 letters, digits, - and _') end
end
