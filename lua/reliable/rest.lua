#!lua flags=allow-oom
--[[
rest: return how long a waiting client may sleep before it looks again, and reissue tickets of dead clients.

KEYS
  then eight per queue: undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset
  meta:hash
ARGV
  [RECOVER ms]  until a message was delivered so long ago
  [NOW ms]      the time to use instead of the server's clock, epoch ms
RETURNS  ms until then, 0 for now, -1 for unknown
COST     O(queues)
WRITES   tickets and issued_at of meta where a ticket is missing
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta

--@include _options

local options, rest = read_options({RECOVER = 'number', NOW = 'number'}, 1)
if not options or ARGV[rest] or #KEYS % 8 > 0 then
  return redis.error_reply('ERR usage: rest takes [RECOVER ms] [NOW ms], and eight keys per queue')
end
--@include shared/_clock
--@include _clock
read_clock(options.NOW)
--@include _look
--@include _keep
--@include _tickets

local function turn_to(queue)
  undelivered, tickets, delivered, messages, unacked, tokens, dead, meta = unpack(KEYS, queue * 8 - 7, queue * 8)
  look()
end

local soonest = -1
-- A key of a wrong type raises here, before anything of the queues before it changes.
for queue = 1, #KEYS / 8 do turn_to(queue) end
for queue = 1, #KEYS / 8 do
  if #KEYS > 8 then turn_to(queue) end
  mend_tickets()
  local oldest = options.RECOVER and redis.call('ZRANGE', delivered, 0, 0, 'WITHSCORES')[2]
  if oldest then
    keep_time()
    local left = math.max(0, math.floor(sane(oldest) or 0) + options.RECOVER - at)
    if soonest < 0 or left < soonest then soonest = left end
  end
end
return soonest
