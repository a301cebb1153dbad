-- look: read everything about a queue before the first write, so that a key of a wrong type doesn't cause a partial change.
-- `at` is the queue's time, which never falls below `last`, the time of its last delivery, whatever the server's clock
-- does.
-- needs: dead messages meta tokens undelivered tickets delivered unacked now_ms
-- A value of another program may not be a number, or may be out of range.
local function sane(text)
  local number = tonumber(text)
  return number and number >= -253402300799999 and number <= 253402300799999 and number or nil
end

local exists, last_id, nwaiting, nfree, nunacked, ntokens, last, at, skew, kept_skew, issued_at, max_deliveries
local function look()
  local tail = redis.call('ZRANGE', delivered, -1, -1, 'WITHSCORES')[2]
  local facts = redis.call('HMGET', meta, 'skew', 'issued_at', 'max_deliveries', 'last_id')
  last_id = facts[4]
  exists = last_id or facts[3]
  nwaiting, nfree = redis.call('LLEN', undelivered), redis.call('LLEN', tickets)
  nunacked, ntokens = redis.call('HLEN', unacked), redis.call('HLEN', tokens)
  redis.call('HLEN', messages)
  redis.call('ZCARD', dead)
  kept_skew, issued_at, max_deliveries = sane(facts[1]) or 0, sane(facts[2]) or 0, sane(facts[3]) or 0
  last, skew = sane(tail) or 0, tail and kept_skew or 0
  at = now_ms + skew
  if at < math.floor(last) then at, skew = math.floor(last), math.floor(last) - now_ms end
end
