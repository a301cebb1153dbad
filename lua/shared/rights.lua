#!lua flags=no-writes
--[[
rights: which commands the user of this connection may not send, for jobq check doctor.

KEYS
  key:any  what the commands would be sent to
ARGV
  one per command: its name, with a subcommand as in `xinfo|stream`
RETURNS  {per refused command: its name}
COST     O(commands)
WRITES   nothing
]]
local key = unpack(KEYS)

--@include shared/_arguments
keys_are(1)
local refused = {}
for _, name in ipairs(ARGV) do
  -- The key in every place: some commands take several, and each place must be one this user may touch.
  local words = {}
  for word in string.gmatch(name, '[^|]+') do words[#words + 1] = word end
  for i = 1, 5 do words[#words + 1] = key end
  local asked, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if not (asked and allowed) then refused[#refused + 1] = name end
end
return refused
