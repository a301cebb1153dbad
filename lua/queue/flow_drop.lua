#!lua flags=allow-oom
--[[
flow_drop: delete entries of flow_outbox that were delivered to their flows.

KEYS
  eoq_backoff:string wake:list flow_outbox:stream flow_claim:string
ARGV
  drainer  whose claim ends, until it reads again; '' = read without a claim
  then one per entry: its id, 1-1000 of them
RETURNS  {how many were there, how many are left}
COST     O(entries)
WRITES   eoq_backoff and wake and flow_outbox and flow_claim
]]
local eoq_backoff, wake, flow_outbox, flow_claim = unpack(KEYS)
local drainer = unpack(ARGV, 1, 1)

--@include shared/_arguments
keys_are(4)
arguments_are(1, 1, 1000)
--@include _stored
for i = 2, #ARGV do
  if #ARGV[i] > 41 or not string.find(ARGV[i], '^%d+%-%d+$') then refuse('an id', 'two numbers with a hyphen between them') end
end
probe('STRLEN', eoq_backoff, flow_claim)
local nwake, before, MAX_ENTRIES = redis.call('LLEN', wake), redis.call('XLEN', flow_outbox), 1000000
--@include _wake
local gone = redis.call('XDEL', flow_outbox, unpack(ARGV, 2))
-- Messages of flows were blocked.
if before > MAX_ENTRIES and before - gone <= MAX_ENTRIES then wake_up() end
if drainer ~= '' and redis.call('GET', flow_claim) == drainer then redis.call('DEL', flow_claim) end
return {gone, before - gone}
