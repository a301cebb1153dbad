-- channel: check, before the first write, whether the caller may publish there.
-- needs: refuse
local function check_channel(channel)
  if channel ~= '' and not redis.acl_check_cmd('publish', channel, '1') then
    refuse('channel', 'one that this user may publish on')
  end
end
