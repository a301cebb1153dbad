#!lua flags=no-writes
--[[
status: return the status of a message, and facts about it.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash progress:hash done:set last_dead:hash meta:hash events:stream
ARGV
  mid  message id
  now  epoch ms, or '' for the server's clock
RETURNS  {status, attempts, ncrashes, not_before or 0, lock_at or 0, generation, dead id or '', progress,
         times handed to a worker that doesn't know its job, checkpoint or '', number of the latest failed attempt whose
         traceback is kept or 0, that traceback or ''};
         status is one of Carmine's eight, or 'dead' when only a dead one is known
COST     O(1)
WRITES   nothing
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, progress, done,
  last_dead, meta, events = unpack(KEYS)
local mid, now = unpack(ARGV)

--@include shared/_arguments
keys_are(14)
arguments_are(2)
--@include _stored
--@include _counters
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _status
--@include _attempts

local word = status(mid)
local dead_id = redis.call('HGET', last_dead, mid) or ''
if word == 'nil' and dead_id ~= '' then word = 'dead' end
-- Until the first attempt ends, its token is the generation.
local generation = redis.call('HGET', generations, mid) or redis.call('HGET', tokens, mid) or ''
-- A progress report, a checkpoint and a traceback, with 0x1e between them.
local reported, checkpoint, failed = string.match(redis.call('HGET', progress, mid) or '', '^([^\30]*)\30?([^\30]*)\30?(.*)$')
local failed_attempt, traceback = string.match(failed, '^(%d+)\31(.*)$')
return {word, count_in(attempts_in(mid)), count_of(ncrashes, mid), count_of(backoffs, mid), count_of(locks, mid), generation, dead_id,
  reported, count_of(nunknowns, mid), checkpoint, count_in(failed_attempt), traceback or ''}
