#!lua flags=allow-oom
--[[
claim: take up to `limit` jobs from a Ruby list into a claim, whose holder has a lease.

KEYS
  source:list claims:zset taken:list last_call:string
ARGV
  now       epoch ms, or '' for the server's clock
  claim     1-64 letters, digits, - and _, random; a call with the same one takes nothing more
  number    of this call, counted up by the intake; a repeated or older call doesn't take jobs, even if the claim
            has been settled since then, because its jobs would be enqueued under a used number
  lease_ms  if the claim isn't settled for this long, others may take it over, 1-86400000
  limit     most jobs, 1-1000
  bytes     stop after this many bytes, from 1
  side      where the oldest job stands: RIGHT (Sidekiq) or LEFT (Resque)
RETURNS  {per job taken, oldest first: its bytes}
COST     O(jobs)
WRITES   source and claims and last_call, and the jobs moved into taken; nothing for a repeated or older call
]]
local source, claims, taken, last_call = unpack(KEYS)
local now, claim, number, lease_ms, limit, bytes, side = unpack(ARGV)

--@include shared/_arguments
--@include shared/_clock
--@include _inputs
keys_are(4)
arguments_are(7)
claim_id(claim)
local now_ms = time_ms(whole_or_none('now', now, 0, LATEST_MS))
number, lease_ms = whole('number', number, 0, MAX_COUNT), whole('lease_ms', lease_ms, 1, MAX_LEASE_MS)
limit, bytes = whole('limit', limit, 1, 1000), whole('bytes', bytes, 1, MAX_COUNT)
one_of('side', side, 'LEFT', 'RIGHT')
probe('LLEN', source, taken)
probe('ZCARD', claims)
local last_number = tonumber(redis.call('GET', last_call) or 0) or 0

if redis.call('EXISTS', taken) == 1 then return redis.call('LRANGE', taken, 0, -1) end
if number <= last_number then return {} end
local items, size = {}, 0
while #items < limit and size < bytes do
  local item = redis.call('LMOVE', source, taken, side, 'RIGHT')
  if not item then break end
  items[#items + 1], size = item, size + #item
end
if #items > 0 then
  redis.call('ZADD', claims, string.format('%.0f', now_ms + lease_ms), claim)
  redis.call('SET', last_call, string.format('%.0f', number), 'PX', 600000)
end
return items
