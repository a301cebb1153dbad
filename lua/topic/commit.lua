#!lua flags=allow-oom
--[[
commit: settle messages that a reader holds, so that the group never gets them again.

KEYS
  group:hash held:zset leases:zset batches:hash last_call:string
ARGV
  caller   random id of the caller, as in the name of last_call
  number   of this call, counted up by the caller
  token    the reader's token
  through  the last index to settle, '' = all of them
RETURNS  {'ok' | 'stale' | 'closed', settled up to}: stale when the lease ended and another reader has them, or
         the group was moved; settled up to: the index below which the group has no message left
COST     O(log of held batches)
WRITES   nothing when stale
]]
local group, held, leases, batches, last_call = unpack(KEYS)
local caller, number, token, through = unpack(ARGV)
local function text(index) return string.format('%.0f', index) end

-- The usual call passes without the functions that describe errors.
local find = string.find
if not (#KEYS == 5 and #ARGV == 4 and through == '' and #token <= 200 and #caller <= 64 and find(caller, '^[!-~]+$') and #number <= 15 and find(number, '^%d+$')) then
--@include shared/_arguments
keys_are(5)
arguments_are(4)
--@include shared/_caller
checked_number(caller, number)
if #token > 200 then refuse('token', '200 bytes at most') end
whole_or_none('through', through, 0, 9007199254740991)
end
--@include shared/_call
--@include _record_life
local call = open_call(last_call, tonumber(number))
--@include _batch
--@include _settle
--@include _settled

if call.refused then return {'closed', 0} end
local word = call.kept
if not word then
  word = settle(token, through)
  if word == 'ok' then record_call(call, word, life_of(call)) end
end
return {word, settled()}
