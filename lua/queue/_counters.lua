-- counters: read whole numbers from hash fields, and the options of a message, whatever bytes are stored there.
-- needs: stored
local function count_in(text) return text and math.floor(stored(text, 1e15, 0)) or 0 end
local function count_of(key, field) return count_in(redis.call('HGET', key, field)) end

-- A field without a number counts from 0.
local function add_to(key, field, change)
  local number = redis.pcall('HINCRBY', key, field, change)
  if type(number) == 'number' then return number end
  redis.call('HSET', key, field, math.max(0, change))
  return math.max(0, change)
end

-- The options of a message: lock length, comma, and one of: how long its mid is taken after the run; '@' and the time until which
-- it is taken; '<' and the latest moment that newer content may move it to; '>' and the same for the content that waits
-- after its run. -> lock length or nil, dedupe backoff or nil, ms; the moment of '@' or nil
local function own_options(text)
  local lock_ms, sign, number = string.match(text or '', '^(%d*),([@<>]?)(%d*)')
  number = stored(number, LATEST_MS, nil)
  return stored(lock_ms, MAX_LOCK_MS, nil), sign == '' and number or nil, sign == '@' and number or nil
end
