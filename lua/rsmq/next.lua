#!lua flags=allow-oom
--[[
next: delete finished messages, then receive, in one round trip.

KEYS
  messages:zset attributes:hash
ARGV
  now     epoch microseconds, or '' for the server's clock
  vt      seconds that received messages stay hidden, '' = the queue's setting
  limit   maximum number of messages
  then two per message to delete: id, receipt (times received when it was handed out)
RETURNS  {word, words, ...}: words has one item for each message to delete, 'deleted' | 'absent' | 'stale'; then as
         receive, {'ok', words, messages...} | {'empty', words, ms until the next or ''} | {'not_found'}
COST     O((deleted + limit) x log messages), and up to 1000 phantoms
WRITES   nothing for a stale message, or a queue that doesn't exist
]]
local messages, attributes = unpack(KEYS)
local now, vt, limit = unpack(ARGV, 1, 3)

-- The usual call passes without the functions that describe errors.
local find = string.find
if not (#KEYS == 2 and #ARGV == 5 and now == '' and (vt == '' or (#vt <= 6 and not find(vt, '%D'))) and #limit <= 3 and find(limit, '^[1-9]%d*$')
  and (ARGV[5] == '' or (#ARGV[5] <= 6 and not find(ARGV[5], '%D')))) then
--@include shared/_arguments
keys_are(2)
arguments_are(3, 0, 1000, 2)
whole_or_none('now', now, 0, 9007199254740991)
whole_or_none('vt', vt, 0, 9999999)
whole('limit', limit, 1, 1000)
for i = 5, #ARGV, 2 do whole_or_none('receipt', ARGV[i], 0, 9007199254740991) end
end
vt, limit = tonumber(vt), tonumber(limit)
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved
--@include _visible
--@include _handout
--@include _delete

if not exists then return {'not_found'} end
local words = delete(4)
local reply = {'ok', words}
local visible, instead = find_visible(limit, reply)
if not visible then return {'empty', words, instead[2] or '1'} end
hide(visible, reply, vt)
return reply
