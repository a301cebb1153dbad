#!lua flags=allow-oom
--[[
append: record what a person did, or tried to do. Beyond 100,000 entries the oldest are removed, by whole nodes.

KEYS
  audit:stream
ARGV
  who  1 to 200 bytes
  role  up to 40 bytes
  verb  1 to 40 bytes
  queue  up to 1000 bytes; several queues are separated by commas
  filter  up to 1000 bytes
  count  a whole number, or '' if it isn't known
  op  up to 64 bytes, the same in all entries of one operation
  phase  'intent', 'done', 'failed', 'refused' or 'undone'
  note  up to 2000 bytes
RETURNS  {id of the entry}
COST     O(1)
WRITES   audit
]]
local audit = unpack(KEYS)
local who, role, verb, queue, filter, count, op, phase, note = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(9)
if #who < 1 or #who > 200 then refuse('who', '1 to 200 bytes long') end
if #role > 40 then refuse('role', 'up to 40 bytes long') end
if #verb < 1 or #verb > 40 then refuse('verb', '1 to 40 bytes long') end
if #queue > 1000 then refuse('queue', 'up to 1000 bytes long') end
if #filter > 1000 then refuse('filter', 'up to 1000 bytes long') end
whole_or_none('count', count, 0, 9007199254740991)
if #op > 64 then refuse('op', 'up to 64 bytes long') end
one_of('phase', phase, 'intent', 'done', 'failed', 'refused', 'undone')
if #note > 2000 then refuse('note', 'up to 2000 bytes long') end

local names = {'who', 'role', 'verb', 'queue', 'filter', 'count', 'op', 'phase', 'note'}
local fields = {}
for i, name in ipairs(names) do
  if ARGV[i] ~= '' then
    fields[#fields + 1] = name
    fields[#fields + 1] = ARGV[i]
  end
end
return {redis.call('XADD', audit, 'MAXLEN', '~', '100000', '*', unpack(fields))}
