#!lua flags=allow-oom
--[[
flow_read: return the oldest entries of flow_outbox to one drainer. They stay until flow_drop.

KEYS
  flow_outbox:stream flow_claim:string
ARGV
  drainer   who asks, 1-64 printable ASCII characters; '' = read without a claim
  claim_ms  how long the entries are reserved for this drainer, 1-60000
  limit     entries, 1-1000
  after     begin after this entry id; '' = at the oldest
RETURNS  {'entries', then per entry: its id, its records joined by 0x1e, '' for an entry of another shape}: about 1 MiB of
         them; no entries: there are none, and the claim has ended | {'claimed'}: by another drainer
COST     O(limit)
WRITES   flow_claim
]]
local flow_outbox, flow_claim = unpack(KEYS)
local drainer, claim_ms, limit, after = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(4)
if #drainer > 64 or not string.find(drainer, '^[!-~]*$') then refuse('drainer', '64 printable ASCII characters without blanks at most') end
claim_ms, limit = whole('claim_ms', claim_ms, 1, 60000), whole('limit', limit, 1, 1000)
if after ~= '' and not string.find(after, '^%d+%-%d+$') or #after > 40 then refuse('after', 'the id of an entry') end
local start = after == '' and '-' or '(' .. after
local entries, MAX_BYTES = redis.call('XRANGE', flow_outbox, start, '+', 'COUNT', limit), 1048576
if drainer ~= '' then
  local holder = redis.call('GET', flow_claim)
  if holder and holder ~= drainer and entries[1] then return {'claimed'} end
  if entries[1] then
    redis.call('SET', flow_claim, drainer, 'PX', claim_ms)
  elseif holder == drainer then
    redis.call('DEL', flow_claim)
  end
end
local reply, bytes = {'entries'}, 0
for i, entry in ipairs(entries) do
  local fields = entry[2] or {}
  local text = fields[1] == '1' and #fields == 2 and #fields[2] <= 2 * MAX_BYTES and fields[2] or ''
  bytes = bytes + #text
  if i > 1 and bytes > MAX_BYTES then break end
  reply[2 * i], reply[2 * i + 1] = entry[1], text
end
return reply
