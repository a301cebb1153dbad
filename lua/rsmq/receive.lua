#!lua flags=allow-oom
--[[
receive: hide the first visible messages for a while and hand them out.

KEYS
  messages:zset attributes:hash
ARGV
  now     epoch microseconds, or '' for the server's clock
  vt      seconds they stay hidden, '' = the queue's
  limit   so many at most
RETURNS  {'ok', then per message: id, body, times received, first received at, ms} | {'not_found'} |
         {'empty', ms until the next becomes visible, '' if none waits} | {'again'}: only phantoms so far
COST     O(limit x log messages), and up to 1000 phantoms
WRITES   nothing when nothing is visible, but that phantoms are removed
]]
local messages, attributes = unpack(KEYS)
local now, vt, limit = unpack(ARGV)

--@include _clock
--@include _settings

if not exists then return {'not_found'} end
limit = tonumber(limit)
local reply = {'ok'}

--@include _visible

if nothing then return nothing end

--@include _handout

return reply
