-- members: messages of flows, whose mids begin with ~. A script that ends members appends one entry per call to
-- flow_outbox; drainers deliver it to the flows. `members` of meta counts unended members, once there were any.
-- needs: flow_outbox meta members not_plain
local TILDE, MAX_ENTRIES = 126, 1000000
local member_records, nrecords, with_result = {}, 0, {}
-- A key of another type raises here, where nothing is written yet.
local nentries = members and redis.call('XLEN', flow_outbox) or 0

-- kind: done, dead, or cancelled; in place of done 'done+' for a mid in with_result
local function end_member(kind, mid)
  if not members or string.byte(mid) ~= TILDE then return end
  nrecords = nrecords + 1
  member_records[#member_records + 1] = (kind == 'done' and with_result[mid] and 'done+' or kind) .. '\31' .. mid
end

-- Do the same as end_member('done', …) for each. Usually all are members without results.
local function members_done(mids)
  if not members then return end
  for i = 1, #mids do
    if string.byte(mids[i]) ~= TILDE or with_result[mids[i]] then
      for k = 1, #mids do end_member('done', mids[k]) end
      return
    end
  end
  nrecords = nrecords + #mids
  member_records[#member_records + 1] = 'done\31' .. table.concat(mids, '\30done\31')
end

-- Entries that can't be appended (the last id is used up) are missing in their flows, which `flow check` repairs.
local function save_members(new)
  local change = (new or 0) - nrecords
  if nrecords > 0 then redis.pcall('XADD', flow_outbox, '*', '1', table.concat(member_records, '\30')) end
  if change ~= 0 then
    not_plain()
    members = math.max(0, (members or 0) + change)
    redis.call('HSET', meta, 'members', string.format('%.0f', members))
  end
end
