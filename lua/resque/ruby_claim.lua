#!lua flags=allow-oom
--[[
ruby_claim: take up to so many jobs off a Ruby list, into a claim whose holder has a lease.

KEYS
  source:list claims:zset taken:list
ARGV
  now       epoch ms, or '' for the server's clock
  claim     16 characters, random; a call with the same one takes nothing more
  lease_ms  after so long without being settled, others may take the claim over
  limit     most jobs
  bytes     no further job once so many bytes are taken
  side      where the oldest job stands: RIGHT (Sidekiq) or LEFT (Resque)
RETURNS  {per job taken, oldest first: its bytes}
COST     O(jobs)
WRITES   source and claims, and what is moved into taken
]]
local source, claims, taken = unpack(KEYS)
local now, claim, lease_ms, limit, bytes, side = unpack(ARGV)

if redis.call('EXISTS', taken) == 1 then return redis.call('LRANGE', taken, 0, -1) end
local items, size = {}, 0
while #items < tonumber(limit) and size < tonumber(bytes) do
  local item = redis.call('LMOVE', source, taken, side, 'RIGHT')
  if not item then break end
  items[#items + 1], size = item, size + #item
end
if #items > 0 then
  if now == '' then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  redis.call('ZADD', claims, string.format('%.0f', now + lease_ms), claim)
end
return items
