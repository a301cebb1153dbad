-- counter: counter(key), an index that redismq's programs keep; going on from what is none would lose messages.
-- needs: whole
local function counter(key)
  local text = redis.call('GET', key)
  return text and whole('what ' .. key .. ' holds', text, 0, 9007199254740000) or 0
end
