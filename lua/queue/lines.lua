#!lua flags=no-writes
--[[
lines: return a page of the keys that have waiting or running messages, or are held; in no order.

KEYS
  keys:hash lines:hash rules:hash meta:hash events:stream
ARGV
  now     epoch ms, or '' for the server's clock
  cursor  '0' first, then the cursor that the previous page returned
  limit   about how many keys, 1-1000
RETURNS  {next cursor, '0' = end, then per key: key, waiting, running, weight, most or 0, held until or 0, ms of the
         next start that its rate allows or 0, the message at the head of its line or '', messages that may wait or 0}
COST     O(limit); a queue of few keys is returned whole
WRITES   nothing
]]
local keys, lines, rules, meta, events = unpack(KEYS)
local now, cursor, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(3)
whole('cursor', cursor, 0, 9007199254740991)
limit = whole('limit', limit, 1, 1000)
--@include _stored
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _dequeue_rate
--@include _key_facts

local reply = redis.call('HSCAN', keys, cursor, 'COUNT', limit)
local page = {reply[1]}
for i = 1, #reply[2], 2 do
  local key = reply[2][i]
  local facts = key ~= '' and key_facts(key, reply[2][i + 1])
  if facts then
    for _, item in ipairs({
      key, facts.waiting, facts.running, facts.weight, facts.most or 0, facts.held_until, facts.starts_at, facts.oldest,
      facts.most_waiting or 0,
    }) do
      page[#page + 1] = item
    end
  end
end
return page
