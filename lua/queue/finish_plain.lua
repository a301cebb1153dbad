#!lua flags=allow-oom
--[[
finish_plain: end held attempts as done and hand out the next messages, if none of them needs anything else. It uses
only the keys for that, so it costs the server less than finish.

KEYS
  messages:hash locks:hash tokens:hash ready:list due:zset circle:list done:set eoq_backoff:string ndry_runs:string
  wake:list meta:hash events:stream last_call:string
ARGV
  caller    1-64 printable ASCII characters, the connection's random id
  number    of this call, counted up by the caller
  now       epoch ms, or '' for the server's clock
  lease_ms  length of each lock handed out, 1-86400000
  limit     messages to hand out in the same call, 0-1000
  then four per ending, 1-1000: mid, token, age_ms since the run ended, record (event columns, 64 KiB at most)
RETURNS  {'plain'}, all endings were taken; when limit > 0 then sleep_ms, and ms until the earliest due one as dequeue says; or
         0, the fence of the first message, lock_at, mids, contents: two lists, or for one message its mid and its
         content | {'general'}: the call isn't plain, so finish must be sent under the same number
COST     O(endings + limit); upkeep of at most 100 mids
WRITES   nothing for 'general'
]]
local messages, locks, tokens, ready, due, circle, done, eoq_backoff, ndry_runs, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, lease_ms, limit = unpack(ARGV, 1, 5)

if #ARGV < 9 then return {'general'} end
--@include _plain
