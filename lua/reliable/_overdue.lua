-- overdue: hand out again messages delivered this long ago, oldest delivery first, each at most once; a message
-- delivered too often becomes dead.
-- needs: delivered at to_dead count_one hand_out is_id last max_deliveries nunacked
local function recover_overdue(wanted, elapsed, handed, token)
  -- Below the stamps that this call will give.
  local till = '(' .. string.format('%.17g', math.min(at - elapsed + 1, last + 1 / 2048))
  local goal, most = #handed + wanted, wanted + 1000
  while #handed < goal and most > 0 do
    local ids = redis.call('ZRANGE', delivered, '-inf', till, 'BYSCORE', 'LIMIT', 0, math.min(1000, goal - #handed))
    if #ids == 0 then return end
    most = most - #ids
    local alive = {}
    for _, id in ipairs(ids) do
      if not is_id(id) then
        redis.call('ZREM', delivered, id)
      elseif count_one(id) >= max_deliveries and max_deliveries > 0 then
        to_dead(id)
      else
        alive[#alive + 1] = id
      end
    end
    nunacked = nunacked + #ids
    if #alive > 0 then hand_out(alive, handed, token) end
  end
end
