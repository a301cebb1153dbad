-- topic_facts: a topic's database told to the explorer, and as text in which alike states read alike.
local R = ...
local T = {}

local function number(key, field)
  local value = R.db[key]
  return tonumber(value and value.m[field]) or 0
end

local function listed(key)
  local value, parts = R.db[key], {}
  for _, entry in ipairs(value and value.a or {}) do
    parts[#parts + 1] = string.match(entry[1], '^%d+') .. '=' .. table.concat(entry[2], ',')
  end
  return parts
end

-- 'index=m,content,k,key' per entry of a stream.
function T.entries(key) return unpack(listed(key)) end

-- 'token first last deliveries lease_at' per stretch, by first; remaining parts as 'broken'.
function T.stretches()
  local held, leases, batches = R.db.held, R.db.leases, R.db.batches
  local rows, count = {}, 0
  for _, token in ipairs(held and R.ordered(held) or {}) do
    local last, deliveries = string.match(batches and batches.m[token] or '', '^(%d+),(%d+)$')
    local lease = leases and leases.m[token]
    count = count + 1
    if not last or not lease then return 'broken ' .. token end
    rows[#rows + 1] = table.concat({token, R.text_of(held.m[token]), last, deliveries, R.text_of(lease)}, ' ')
  end
  if (leases and leases.n or 0) ~= count or (batches and batches.n or 0) ~= count then return 'broken' end
  return unpack(rows)
end

function T.numbers()
  return number('meta', 'last'), math.max(1, number('meta', 'first')), number('group', 'cursor'),
    number('meta', 'base_to'), number('meta', 'phase')
end

-- The next moment before or at the end of a lease, 0 = none.
function T.next_lease(now)
  local best = 0
  for _, at in pairs(R.db.leases and R.db.leases.m or {}) do
    for _, moment in ipairs({at - 1, at}) do
      if moment > now and (best == 0 or moment < best) then best = moment end
    end
  end
  return best
end

-- The facts that affect later replies: no times but those of leases, and of these only what is left; no tokens, which
-- the
-- explorer identifies by their holder; deliveries would grow without end.
function T.text(now, more)
  local parts = {more}
  for _, key in ipairs({'log', 'base', 'clean'}) do parts[#parts + 1] = key .. table.concat(listed(key), ' ') end
  for _, row in ipairs({T.stretches()}) do
    local first, last, at = string.match(row, '^%S+ (%d+) (%d+) %d+ (%d+)$')
    local left = first and R.text_of(math.max(0, tonumber(at) - now))
    parts[#parts + 1] = first and table.concat({first, last, left}, ' ') or row
  end
  local newest = R.db.newest
  for _, key in ipairs(newest and R.members(newest) or {}) do parts[#parts + 1] = key .. newest.m[key] end
  for _, field in ipairs({'first', 'last', 'base_to', 'phase', 'cut', 'at'}) do
    parts[#parts + 1] = field .. R.text_of(number('meta', field))
  end
  local group = R.db.group
  parts[#parts + 1] = R.text_of(number('group', 'cursor')) .. (group and group.m.paused or '')
  return table.concat(parts, '\n')
end

return T
