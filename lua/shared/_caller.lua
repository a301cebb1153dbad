-- caller: the caller's id, and the number of this call.
-- needs: refuse whole
-- -> the number
local function checked_number(caller, number)
  if not caller or #caller > 64 or not string.find(caller, '^[!-~]+$') then
    refuse('caller', '1 to 64 printable ASCII characters without blanks')
  end
  return whole('number', number, 0, 9007199254740991)
end
