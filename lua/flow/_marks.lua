-- marks: up to which entries what outboxes say is not for this flow, or was taken whole: `apply` takes none of that again.
-- needs: meta refuse MARK is_behind
-- given: queue and id of an entry, once or more, joined by 0x1f; '' for none. -> fields of meta and their values
local function checked_marks(given)
  local found, n = {}, 0
  for part in string.gmatch(given == '' and '' or given .. '\31', '([^\31]*)\31') do
    n = n + 1
    local is_queue = n % 2 == 1
    if is_queue and (part == '' or #part > 512) then refuse('the queue of a mark', 'a name') end
    if not is_queue and (#part > 40 or not string.find(part, '^%d+%-%d+$')) then refuse('a mark', 'the id of an entry') end
    found[n] = is_queue and MARK .. part or part
  end
  if n % 2 == 1 or n > 2002 then refuse('marks', '1,001 pairs of queue and id at most') end
  return found
end

-- A mark only moves forward.
local function put_marks(marks)
  for i = 1, #marks, 2 do
    local before = redis.call('HGET', meta, marks[i])
    if not before or is_behind(marks[i + 1], before) then redis.call('HSET', meta, marks[i], marks[i + 1]) end
  end
end
