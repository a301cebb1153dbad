-- text: whether bytes are UTF-8 without control characters, as every mid must be: clients decode it.
-- needs:
-- Well-formed sequences of more than one byte (Unicode, table 3-7), each replaced by a letter.
local SEQUENCES = {
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]'
}

local function is_text(bytes)
  if string.find(bytes, '^[ -~]*$') then return true end
  if string.find(bytes, '%c') then return false end
  for _, sequence in ipairs(SEQUENCES) do bytes = string.gsub(bytes, sequence, 'x') end
  return not string.find(bytes, '[\128-\255]')
end
