#!lua flags=allow-oom
--[[
poll: return a group's next messages to a reader under a lease, messages of an ended lease first.

KEYS
  log:stream base:stream meta:hash group:hash held:zset leases:zset batches:hash last_call:string
ARGV
  caller    random id of the caller, as in the name of last_call
  number    of this call, counted up by the caller
  now       epoch ms, or '' for the server's clock
  token     what the messages will be held by, 1-64 characters, never used before
  count     messages at most, 1-1000
  lease_ms  until they are handed out again unless committed; 0 = committed by this call
  commit    token to commit first, or ''
RETURNS  {word, committed, first, last, deliveries, lease ends at, skipped, wait ms, newest index, messages}
         word: 'ok' | 'paused' | 'missing' (no such group) | 'closed' | 'out-of-range' (first and last are then
         the topic's, wait ms the position); committed: 'ok' | 'stale' | ''; wait ms: until the next
         lease ends, -1 = none or paused; messages as XRANGE gives them
COST     O(messages)
WRITES   nothing when there is nothing to hand out or commit
]]
local log, base, meta, group, held, leases, batches, last_call = unpack(KEYS)
local caller, number, now, token, count, lease_ms, commit = unpack(ARGV)

-- The usual call passes without the functions that describe errors.
local find = string.find
if not (#KEYS == 8 and #ARGV == 7 and now == '' and #caller <= 64 and find(caller, '^[!-~]+$') and #number <= 15 and find(number, '^%d+$')
  and #count <= 3 and find(count, '^[1-9]%d*$') and #lease_ms <= 7 and find(lease_ms, '^%d+$')
  and #token <= 64 and find(token, '^[!-~]+$') and #commit <= 200) then
--@include shared/_arguments
keys_are(8)
arguments_are(7)
--@include shared/_caller
checked_number(caller, number)
whole_or_none('now', now, 0, 253402300799999)
if #token > 64 or not find(token, '^[!-~]+$') then refuse('token', '1 to 64 printable ASCII characters without blanks') end
whole('count', count, 1, 1000)
whole('lease_ms', lease_ms, 0, 86400000)
if #commit > 200 then refuse('commit', '200 bytes at most') end
end
count, lease_ms = tonumber(count), tonumber(lease_ms)
--@include shared/_call
--@include _record_life
local call = open_call(last_call, tonumber(number))
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _cursor
--@include _batch
--@include _handout

if call.refused then return {'closed'} end
if not cursor then return {'missing'} end
if call.kept then
  local committed, first, last, deliveries, lease_at = string.match(call.kept, '^(%a*) (%d+) (%d+) (%d+) (%d+)$')
  first, last = tonumber(first), tonumber(last)
  -- All messages that were handed out then, even if longer messages, which make pages shorter, came since.
  state.longest = 0
  return {'ok', committed, first, last, tonumber(deliveries), tonumber(lease_at), 0, -1, state.last,
    entries(first, last, 1000)}
end

local committed = commit == '' and '' or batch_of(commit) and 'ok' or 'stale'
-- A key of another type raises here or in the next read, where nothing is written yet.
if committed ~= 'ok' and lease_ms > 0 then
  redis.call('ZCARD', held)
  redis.call('HLEN', batches)
end
if paused == '1' then redis.call('ZCARD', leases) end
local given = {first = 0, last = 0, deliveries = 0, skipped = 0, entries = {}}
if paused ~= '1' then
  take_over(given, token, count, commit)
  if #given.entries == 0 and not in_range(given) then
    if committed == 'ok' then let_go(commit) end
    if committed ~= '' then record_call(call, committed .. ' 0 0 0 0', life_of(call)) end
    return {'out-of-range', committed, state.first, state.last, 0, 0, 0, cursor + 1, state.last, {}}
  end
  if #given.entries == 0 then take_new(given, count) end
end

if committed == 'ok' then let_go(commit) end
local lease_at = 0
if #given.entries > 0 and lease_ms > 0 then
  lease_at = now_ms + lease_ms
  hold(token, given.first, given.last, given.deliveries, lease_at)
end
if #given.entries > 0 or committed ~= '' then
  record_call(call, string.format('%s %.0f %.0f %d %.0f', committed, given.first, given.last, given.deliveries, lease_at), life_of(call))
end
local soonest = paused ~= '1' and redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
return {paused == '1' and 'paused' or 'ok', committed, given.first, given.last, given.deliveries, lease_at,
  given.skipped, soonest and math.min(9007199254740000, math.max(0, tonumber(soonest) - now_ms)) or -1, state.last, given.entries}
