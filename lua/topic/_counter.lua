-- counter: counter(key), an index that redismq's programs keep; continuing from an invalid one would lose messages.
-- needs: whole
-- The error doesn't name the key, because an error reply must not contain foreign text.
local function counter(key)
  local text = redis.call('GET', key)
  return text and whole('a counter of the topic', text, 0, 9007199254740000) or 0
end
