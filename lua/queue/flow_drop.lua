#!lua flags=allow-oom
--[[
flow_drop: delete entries of flow_outbox that were taken to their flows.

KEYS
  eoq_backoff:string wake:list flow_outbox:stream
ARGV
  one per entry: its id, 1-1000 of them
RETURNS  {how many were there}
COST     O(entries)
WRITES   eoq_backoff and wake and flow_outbox
]]
local eoq_backoff, wake, flow_outbox = unpack(KEYS)

--@include shared/_arguments
keys_are(3)
arguments_are(0, 1, 1000)
--@include _stored
for i = 1, #ARGV do
  if #ARGV[i] > 41 or not string.find(ARGV[i], '^%d+%-%d+$') then refuse('an id', 'two numbers with a hyphen between them') end
end
probe('STRLEN', eoq_backoff)
local nwake, before, MOST_ENTRIES = redis.call('LLEN', wake), redis.call('XLEN', flow_outbox), 1000000
--@include _wake
local gone = redis.call('XDEL', flow_outbox, unpack(ARGV))
-- Messages of flows stood still.
if before > MOST_ENTRIES and before - gone <= MOST_ENTRIES then wake_up() end
return {gone}
