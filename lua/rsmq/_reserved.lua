-- reserved: is_setting(id), whether a message would have one of the queue's own settings or totals for its body.
-- needs:
local function is_setting(id)
  return string.find(' vt delay maxsize totalrecv totalsent created modified ', ' ' .. id .. ' ', 1, true)
end
