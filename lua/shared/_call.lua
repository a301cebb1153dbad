-- call: a caller numbers its calls. A repeat of the last call is answered from its record; an older call or a closed
-- caller is rejected.
-- A record reads: x where the call is closed, the number, 0x1e, and the text that the script answers again from.
-- needs:
-- -> {refused: whether this call is older or closed; kept: the text, where the same call was made before; what the
-- record says: record, last, closed, and text_at, where its text begins}
local function open_call(key, number)
  local record = redis.call('GET', key)
  local _, head_ends, closed, last = string.find(record or '', '^(x?)(%d+)[\30 ]?')
  last, closed = tonumber(last), closed == 'x'
  return {
    key = key, number = number, record = record, last = last, closed = closed, text_at = (head_ends or 0) + 1,
    refused = last and (closed or last > number), kept = last == number and string.sub(record, head_ends + 1) or nil,
  }
end

-- text: the reply to a repeat of this call; life_ms: how long to keep it, by default ten minutes.
local function record_call(call, text, life_ms)
  redis.call('SET', call.key, string.format('%d', call.number) .. '\30' .. text, 'PX', life_ms or '600000')
end
