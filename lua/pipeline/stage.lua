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

local birth = redis.call('HGET', staged, 'born')
if born ~= '' and birth ~= born then return {'lost'} end
redis.call('HSET', staged, field, batch, 'born', birth or token)
redis.call('PEXPIRE', staged, ttl_ms)
return {'ok', birth or token}
