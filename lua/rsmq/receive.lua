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

-- The usual call passes without the functions that say what is wrong with one.
local find = string.find
if not (#KEYS == 2 and #ARGV == 3 and now == '' and (vt == '' or (#vt <= 6 and not find(vt, '%D'))) and #limit <= 3 and find(limit, '^[1-9]%d*$')) then
--@include shared/_arguments
keys_are(2)
arguments_are(3)
whole_or_none('now', now, 0, 9007199254740991)
whole_or_none('vt', vt, 0, 9999999)
whole('limit', limit, 1, 1000)
end
vt, limit = tonumber(vt), tonumber(limit)
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved
--@include _visible
--@include _handout

if not exists then return {'not_found'} end
local reply = {'ok'}
local found, instead = find_visible(limit, reply)
if not found then return instead end
hide(found, reply, vt)
return reply
