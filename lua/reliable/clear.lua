#!lua flags=allow-oom
--[[
clear: delete every message of a queue. Its last id stays, so that ids continue from there; QUEUE deletes that as well.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
  last_call:string, which may be left out
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  [QUEUE]  the queue as well: then it doesn't exist
RETURNS  how many messages are gone; nil: there is no such queue
COST     O(messages), freed in the background
WRITES   undelivered and tickets and delivered and messages and unacked and tokens and dead and meta and last_call
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta, last_call = unpack(KEYS)

if #KEYS ~= 8 and #KEYS ~= 9 then return redis.error_reply('ERR usage: the eight keys of a queue, and perhaps last_call') end
--@include shared/_call
--@include _call

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local entire = ARGV[first_arg] and string.upper(ARGV[first_arg]) == 'QUEUE'
if ARGV[first_arg + 1] or (ARGV[first_arg] and not entire) then
  return redis.error_reply('ERR usage: clear takes QUEUE or nothing')
end
local before = kept_words()
if before then return tonumber(before[1]) or false end
-- The whole queue is deleted, whatever types its keys have.
local places = {undelivered, tickets, delivered, messages, unacked, tokens, dead, meta}
if not entire then redis.call('HLEN', meta) end
if redis.call('EXISTS', unpack(entire and places or {meta})) == 0 then
  record_words({'none'})
  return false
end
local count = entire and redis.pcall('HLEN', messages) or redis.call('HLEN', messages)
count = tonumber(count) or 0
redis.call('UNLINK', undelivered)
redis.call('UNLINK', tickets)
redis.call('UNLINK', delivered)
redis.call('UNLINK', messages)
redis.call('UNLINK', unacked)
redis.call('UNLINK', tokens)
redis.call('UNLINK', dead)
record_words({string.format('%.0f', count)})
if entire then redis.call('UNLINK', meta) else redis.call('HDEL', meta, 'skew') end
return count
