-- reserved: is_setting(id), whether the body of a message would be one of the queue's settings or totals.
-- needs:
local function is_setting(id)
  return string.find(' vt delay maxsize totalrecv totalsent created modified ', ' ' .. id .. ' ', 1, true)
end
