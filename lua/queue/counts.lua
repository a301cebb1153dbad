#!lua flags=no-writes
--[[
counts: numbers of messages by place, the head of ready, and waiting entries for flows.

KEYS
  messages:hash locks:hash requeue:hash ready:list due:zset circle:list done:set left_ready:set
  left_circle:set keys:hash lines:hash dead:zset quarantine:hash meta:hash nattempts:hash events:stream flow_outbox:stream
  nunknowns:hash
RETURNS  {messages, ready, delayed, deduped, locked, done, requeued, dead, circle, pause, quarantined, keys, fence,
         events ever added, head of ready or '', its attempts, its content if that has at most 4 KiB, else '', entries of
         flow_outbox, time of the oldest (epoch ms, '0' for none), messages lost in producers because the queue rejected
         them after an outage, and when the last was (epoch ms, 0 for never), messages whose job the last worker that got them doesn't
         know, 1 if the event level is off, else 0, 1 if the queue is sealed, else 0}: ready includes messages in lines, keys counts keys with messages or a hold, locked includes
         expired locks not yet recovered, done messages awaiting collection, circle all rotating messages, pause is 0 if the queue isn't paused, 1 until it
         is resumed, else when it ends, epoch ms
COST     O(1)
WRITES   nothing
]]
local messages, locks, requeue, ready, due, circle, done, left_ready, left_circle, keys, lines, dead, quarantine,
  meta, nattempts, events, flow_outbox, nunknowns = unpack(KEYS)

--@include shared/_arguments
keys_are(18)
--@include _stored
--@include shared/_clock
--@include _counters
--@include _attempts

-- The first in ready that has not left it; '' where stale copies hide it.
local function head()
  local mids = redis.call('LRANGE', ready, 0, 15)
  if #mids == 0 then return '' end
  local stale = redis.call('SMISMEMBER', left_ready, unpack(mids))
  for i, mid in ipairs(mids) do
    if stale[i] == 0 and #mid <= MAX_MID_LENGTH then return mid end
  end
  return ''
end

-- The server's count of a stream's entries includes trimmed entries.
local function events_added()
  if redis.call('TYPE', events).ok ~= 'stream' then return 0 end
  local told = redis.call('XINFO', 'STREAM', events)
  for i = 1, #told, 2 do
    if told[i] == 'entries-added' then return told[i + 1] end
  end
  return 0
end

-- Entries waiting for flows, and the time in the id of the first.
local function flow_entries()
  if redis.call('TYPE', flow_outbox).ok ~= 'stream' then return 0, '0' end
  local first = redis.call('XRANGE', flow_outbox, '-', '+', 'COUNT', 1)[1]
  return redis.call('XLEN', flow_outbox), first and string.match(first[1], '^%d+') or '0'
end

local paused, pause_ends, level, sealed = unpack(redis.call('HMGET', meta, 'paused', 'pause_ends', 'events', 'sealed'))

-- 0: it isn't paused; 1: until it is resumed; else when the pause ends, epoch ms.
local function pause_of()
  local ends = stored(pause_ends, LATEST_MS, nil)
  if paused ~= '1' or not ends then return paused == '1' and 1 or 0 end
  return ends > time_ms() and ends or 0
end

local entries, since = flow_entries()
local deduped, mid = count_of(meta, 'deduped'), head()
local content = redis.call('HSTRLEN', messages, mid) <= 4096 and redis.call('HGET', messages, mid) or ''
return {
  redis.call('HLEN', messages),
  redis.call('LLEN', ready) - redis.call('SCARD', left_ready) + redis.call('HLEN', lines),
  redis.call('ZCARD', due) - deduped,
  deduped,
  redis.call('HLEN', locks),
  redis.call('SCARD', done) - deduped,
  redis.call('HLEN', requeue),
  redis.call('ZCARD', dead),
  redis.call('LLEN', circle) - redis.call('SCARD', left_circle),
  pause_of(),
  redis.call('HLEN', quarantine),
  redis.call('HLEN', keys) - redis.call('HEXISTS', keys, ''),
  count_of(meta, 'fence'),
  events_added(),
  mid,
  count_in(attempts_in(mid)),
  content,
  entries,
  since,
  count_of(meta, 'refused'),
  count_of(meta, 'refused_at'),
  redis.call('HLEN', nunknowns),
  level == 'off' and 1 or 0,
  sealed and 1 or 0,
}
