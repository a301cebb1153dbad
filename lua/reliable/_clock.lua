-- clock: now_ms, the moment that a script goes by.
-- needs: time_ms
local now_ms
local function read_clock(now) now_ms = time_ms(now) end
