#!lua flags=allow-oom
--[[
next: delete what is done, then receive, in one round trip.

KEYS
  messages:zset attributes:hash
ARGV
  now     epoch microseconds, or '' for the server's clock
  vt      seconds the received stay hidden, '' = the queue's
  limit   so many at most
  then two per message to delete: id, receipt (times received when it was handed out)
RETURNS  {word, words, ...}: words tells of each that was to be deleted, 'deleted' | 'absent' | 'stale'; then as
         receive, {'ok', words, messages...} | {'empty', words, ms until the next or ''} | {'not_found'}
COST     O((deleted + limit) x log messages), and up to 1000 phantoms
WRITES   nothing for a stale one, nor for a queue that isn't there
]]
local messages, attributes = unpack(KEYS)
local now, vt, limit = unpack(ARGV, 1, 3)

--@include _clock
--@include _settings
--@include _delete

if not exists then return {'not_found'} end
limit = tonumber(limit)
local words = delete(4)
local reply = {'ok', words}

--@include _visible

if nothing then return {'empty', words, nothing[2] or '1'} end

--@include _handout

return reply
