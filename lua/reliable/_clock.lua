-- clock: now_ms, the time that a script uses.
-- needs: time_ms
local now_ms
local function read_clock(now) now_ms = time_ms(now) end
