-- check: what must hold for a mid in each place, and for the totals (invariants I2-I4, I14).
-- needs: messages locks tokens backoffs ready due circle done left_ready left_circle dead dead_messages meta
local bad = {}
local function rule(holds, name, mid)
  if not holds then bad[#bad + 1], bad[#bad + 2] = name, mid end
end
local function has(key, mid) return redis.call('HEXISTS', key, mid) == 1 end
local function finished(mid) return redis.call('SISMEMBER', done, mid) == 1 end
local function size(list, notes) return redis.call('LLEN', list) - redis.call('SCARD', notes) end

local check = {
  ready = function(mid)
    rule(has(messages, mid), 'ready without message', mid)
    rule(not has(locks, mid) and not finished(mid) and not has(backoffs, mid), 'ready and elsewhere', mid)
  end,
  circle = function(mid)
    rule(has(messages, mid), 'circle without message', mid)
    rule(has(locks, mid) ~= finished(mid), 'circle: neither locked nor done, or both', mid)
    rule(has(locks, mid) == has(tokens, mid), 'lock without token', mid)
    rule(not has(backoffs, mid), 'circle and due', mid)
  end,
  due = function(mid)
    rule(has(messages, mid), 'due without message', mid)
    rule(redis.call('HGET', backoffs, mid) == redis.call('ZSCORE', due, mid), 'due without its backoff', mid)
    rule(not has(locks, mid), 'due and locked', mid)
  end,
}
local function totals()
  local placed = size(ready, left_ready) + size(circle, left_circle) + redis.call('ZCARD', due)
  rule(redis.call('HLEN', messages) == placed, 'messages and places differ in number', '')
  rule(redis.call('HLEN', locks) == redis.call('HLEN', tokens), 'locks and tokens differ in number', '')
  rule(redis.call('HLEN', backoffs) == redis.call('ZCARD', due), 'backoffs and due differ in number', '')
  rule(redis.call('ZCARD', dead) == redis.call('HLEN', dead_messages), 'dead and their contents differ', '')
  rule((tonumber(redis.call('HGET', meta, 'deduped')) or 0) <= redis.call('SCARD', done), 'deduped over done', '')
end
