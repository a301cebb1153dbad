#!lua
--[[
stage: keep a batch of messages aside for a queue; nobody gets them before they are published.

KEYS
  staged:hash
ARGV
  token   random, of the attempt that stages; the birth of the stage where this call begins it
  born    the birth that this attempt was told before, '' on its first call
  field   what the batch is kept under
  batch   messages with their times, see _batch
  ttl_ms  how long all of the stage is kept from now on
RETURNS  {'ok', birth}; {'lost'} when what this attempt staged before is gone
COST     O(1)
WRITES   staged; nothing when it was lost or memory is full
]]
local staged = unpack(KEYS)
local token, born, field, batch, ttl_ms = unpack(ARGV, 1, 5)

--@include shared/_arguments
keys_are(1)
arguments_are(5)
whole('ttl_ms', ttl_ms, 1, 3153600000000)
if token == '' or #token > 512 or #born > 512 then refuse('token and born', '512 bytes at most, and a token') end
if field == '' or field == 'born' or #field > 512 then refuse('field', '1 to 512 bytes, and not born') end
if #batch < 9 or #batch > 16777216 then refuse('the batch', '9 bytes to 16 MiB') end

local birth = redis.call('HGET', staged, 'born')
if born ~= '' and birth ~= born then return {'lost'} end
redis.call('HSET', staged, field, batch, 'born', birth or token)
redis.call('PEXPIRE', staged, ttl_ms)
return {'ok', birth or token}
