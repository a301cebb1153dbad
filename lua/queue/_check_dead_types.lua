-- check_dead_types: the types of the other keys that upkeep and hand-outs touch, as _check_types.
-- needs: dead dead_messages last_dead quarantine any
if redis.call('EXISTS', dead, dead_messages, last_dead, quarantine) > 0 then
  any.dead = true
  probe('ZCARD', dead)
  probe('HLEN', dead_messages, last_dead, quarantine)
end
