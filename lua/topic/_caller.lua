-- caller: refuses what can't name a caller, or number its calls.
-- needs: caller number refuse whole
if not caller or #caller > 64 or not string.find(caller, '^[!-~]+$') then
  refuse('caller', '1 to 64 printable ASCII characters without blanks')
end
whole('number', number, 0, 9007199254740991)
