#!lua
--[[
announce: send a signal to a flow through this queue: begin, a signal, a person's command. Safe to repeat.

KEYS
  eoq_backoff:string wake:list meta:hash flow_outbox:stream
ARGV
  kind     'begin' | 'signal' | 'cancel' | 'retry' | 'look'
  subject  the flow, 1-128 bytes
  detail   of this kind, 1 MiB at most; '' = none
RETURNS  {'announced', id of the entry}
COST     O(1)
WRITES   eoq_backoff and wake and meta and flow_outbox
]]
local eoq_backoff, wake, meta, flow_outbox = unpack(KEYS)
local kind, subject, detail = unpack(ARGV)

--@include shared/_arguments
keys_are(4)
arguments_are(3)
--@include _stored
--@include _text
one_of('kind', kind, 'begin', 'signal', 'cancel', 'retry', 'look')
if subject == '' or #subject > 128 or not is_text(subject) then refuse('subject', '1 to 128 bytes of UTF-8 without control characters') end
if #detail > 1048576 or string.find(detail, '\30', 1, true) then refuse('detail', '1 MiB at most, without 0x1e') end
probe('XLEN', flow_outbox)
probe('STRLEN', eoq_backoff)
redis.call('HEXISTS', meta, 'members')
local nwake = redis.call('LLEN', wake)
--@include _wake
local id = redis.call('XADD', flow_outbox, '*', '1', kind .. '\31' .. subject .. (detail == '' and '' or '\31' .. detail))
redis.call('HDEL', meta, 'plain_until')
redis.call('HSETNX', meta, 'members', '0')
wake_up()
return {'announced', id}
