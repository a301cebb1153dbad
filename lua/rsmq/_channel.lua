-- channel: whether the caller may publish there; it is asked before anything is written.
-- needs: refuse
local function check_channel(channel)
  if channel ~= '' and not redis.acl_check_cmd('publish', channel, '1') then
    refuse('channel', 'one that this user may publish on')
  end
end
