#!lua flags=allow-oom
--[[
ruby_claim: take up to so many jobs off a Ruby list, into a claim whose holder has a lease.

KEYS
  source:list claims:zset taken:list last_call:string
ARGV
  now       epoch ms, or '' for the server's clock
  claim     16 characters, random; a call with the same one takes nothing more
  number    of this call, counted up by the intake; a repeated or older one takes nothing, also when the claim
            was settled meanwhile, since what it took would be enqueued under a number that was used
  lease_ms  after so long without being settled, others may take the claim over
  limit     most jobs
  bytes     no further job once so many bytes are taken
  side      where the oldest job stands: RIGHT (Sidekiq) or LEFT (Resque)
RETURNS  {per job taken, oldest first: its bytes}
COST     O(jobs)
WRITES   source and claims and last_call, and what is moved into taken; nothing for a repeated or older call
]]
local source, claims, taken, last_call = unpack(KEYS)
local now, claim, number, lease_ms, limit, bytes, side = unpack(ARGV)

if redis.call('EXISTS', taken) == 1 then return redis.call('LRANGE', taken, 0, -1) end
if tonumber(number) <= (tonumber(redis.call('GET', last_call)) or 0) then return {} end
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
  redis.call('SET', last_call, number, 'PX', 600000)
end
return items
