#!lua flags=allow-oom
--[[
dequeue_plain: hand out ready messages if none of them needs anything else. It uses only the keys for that, so it costs
the server less than dequeue.

KEYS
  messages:hash locks:hash tokens:hash ready:list due:zset circle:list done:set eoq_backoff:string ndry_runs:string
  wake:list meta:hash events:stream last_call:string
ARGV
  caller    1-64 printable ASCII characters, the connection's random id
  number    of this call, counted up by the caller
  now       epoch ms, or '' for the server's clock
  lease_ms  length of each lock, 1-86400000
  limit     messages wanted, 1-1000
RETURNS  {'plain', sleep_ms, ms until the earliest due one as dequeue says} | {'plain', 0, fence of the first, lock_at,
         mids, contents}: two lists, or for one message its mid and its content | {'general'}: the call isn't plain, so
         dequeue must be sent under the same number
COST     O(limit), 4 MiB of content; upkeep of at most 100 mids
WRITES   nothing while eoq_backoff holds, or for 'general'
]]
local messages, locks, tokens, ready, due, circle, done, eoq_backoff, ndry_runs, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, lease_ms, limit = unpack(ARGV)

if #ARGV ~= 5 then return {'general'} end
--@include _plain
