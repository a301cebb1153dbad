-- channel: whether the caller may publish there; it is asked before anything is written.
-- needs: channel refuse
if channel ~= '' and not redis.acl_check_cmd('publish', channel, '1') then
  refuse('channel', 'one that this user may publish on')
end
