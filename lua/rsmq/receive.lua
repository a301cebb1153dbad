#!lua flags=allow-oom
--[[
receive: hide the first visible messages for a while and hand them out.

KEYS
  messages:zset attributes:hash
ARGV
  now     epoch microseconds, or '' for the server's clock
  vt      seconds they stay hidden, '' = the queue's setting
  limit   maximum number of messages
RETURNS  {'ok', then per message: id, body, times received, first received at, ms} | {'not_found'} |
         {'empty', ms until the next becomes visible, '' if none waits} | {'again'}: only phantoms so far
COST     O(limit x log messages), and up to 1000 phantoms
WRITES   only removed phantoms if no message is visible
]]
local messages, attributes = unpack(KEYS)
local now, vt, limit = unpack(ARGV)

local find, call = string.find, redis.call
-- A small whole number, written as usual.
local function is_plain(text) return text and #text <= 15 and find(text, '^%d+$') end

-- One message, sent and received as usual. The rest of the script handles all other calls and messages.
if limit == '1' and now == '' and #KEYS == 2 and #ARGV == 3 and #vt <= 6 and not find(vt, '%D') then
  local time = call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local settings = call('HMGET', attributes, 'vt', 'delay', 'maxsize', 'totalrecv')
  local id, score = unpack(call('ZRANGE', messages, 0, 0, 'WITHSCORES'))
  if not id and settings[1] and settings[2] and settings[3] then return {'empty', ''} end
  if vt == '' then vt = settings[1] end
  if id and #id == 32 and tonumber(score) <= now_ms and is_plain(vt) and settings[1] and settings[2] and settings[3]
    and is_plain(settings[4]) then
    local body, received, first_at = unpack(call('HMGET', attributes, id, id .. ':rc', id .. ':fr'))
    if body and (not received or (is_plain(received) and received ~= '0')) then
      local times, total = (received or 0) + 1, string.format('%d', settings[4] + 1)
      call('ZADD', messages, now_ms + 1000 * vt, id)
      if received then
        call('HSET', attributes, 'totalrecv', total, id .. ':rc', times)
        return {'ok', id, body, times, first_at or '0'}
      end
      first_at = string.format('%d', now_ms)
      call('HSET', attributes, 'totalrecv', total, id .. ':rc', '1', id .. ':fr', first_at)
      return {'ok', id, body, 1, first_at}
    end
  end
  vt = ARGV[2]
end

--@include shared/_arguments
keys_are(2)
arguments_are(3)
whole_or_none('now', now, 0, 9007199254740991)
whole_or_none('vt', vt, 0, 9999999)
whole('limit', limit, 1, 1000)
vt, limit = tonumber(vt), tonumber(limit)
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved
--@include _visible
--@include _handout

if not exists then return {'not_found'} end
local reply = {'ok'}
local visible, instead = find_visible(limit, reply)
if not visible then return instead end
hide(visible, reply, vt)
return reply
