-- inputs: what several of these scripts take: the moment, and the id of a claim.
-- needs:
local MOST, LATEST_MS, LONGEST_LEASE_MS = 9007199254740991, 253402300799999, 86400000

local function now_of(now)
  local given = whole_or_none('now', now, 0, LATEST_MS)
  if given then return given end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function is_claim_id(text)
  return #text <= 64 and string.find(text, '^[%w_-]+$') ~= nil
end

local function claim_id(text)
  if not is_claim_id(text) then refuse('claim', '1 to 64 letters, digits, - and _') end
end
