#!lua flags=no-writes
--[[
rights: which commands the user of this connection may not send, for jobq doctor.

KEYS
  messages:any  or another key that the commands are to be sent to
ARGV
  one per command: its name
RETURNS  {per refused command: its name}
COST     O(commands)
WRITES   nothing
]]
local messages = unpack(KEYS)

local refused = {}
for _, name in ipairs(ARGV) do
  -- The key in every place: some commands take several, and each place must be one this user may touch.
  local asked, allowed = pcall(redis.acl_check_cmd, name, messages, messages, messages, messages, messages)
  if not (asked and allowed) then refused[#refused + 1] = name end
end
return refused
