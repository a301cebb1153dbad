-- upkeep: after an append, a step of retention, and a step of compaction if half of the topic or more is new.
-- needs: base allowed_from begin_compaction compaction_step drop_below state
local function keep_up(nmessages)
  if state.max_age + state.max_count + state.max_bytes > 0 then drop_below(allowed_from()) end
  if state.compact == 1 then
    if state.phase == 0 and state.last - state.base_to >= math.max(1000, redis.call('XLEN', base)) then
      begin_compaction()
    end
    if state.phase > 0 then compaction_step(4 * nmessages + 16) end
  end
end
