-- Calendar: FixedWindow by the calendar of a time zone. The caller knows where windows begin, and sends, as of its own clock, the beginnings of
-- the window before, b0, of the present one, b1, and of the next ones, b2 and b3. The script finds by its time which of these
-- windows it is in: so the clocks of both may be up to a window apart.
--
-- State, as counter.lua has it: time T of the last charge, and the units C that counted then; w is the number of the window of T, among
-- those that were sent: -1 before b0, 3 from b3 on. Units in windows before b0 count no more. The end of a window from b3 on is not known: a
-- key that was charged there is kept, or stays blocked, for up to three windows.
-- @limit
B, b0, b1, b2, b3
-- @format
I7I7I7I7I7
-- @variables
local APART = 'SLUICEAPART the clock of Redis and that of the caller are more than a window apart, by the calendar of the limit'
if now < b0 or now >= b3 then return redis.error_reply(APART) end
local T, C, w = 0, 0, -1
-- @view
C, 0, lent

-- @learn
if byte(state) ~= 99 or #state ~= 21 then return redis.error_reply(FOREIGN) end
local g, T2, C2 = read('>I6I7I7', state, 2)
if g >= gen then
  local w2 = T2 < b0 and -1 or T2 < b1 and 0 or T2 < b2 and 1 or T2 < b3 and 2 or 3
  if T2 > T then
    if w2 > w then C = 0 end
    T, w = T2, w2
  elseif w2 < w then
    C2 = 0
  end
  if C2 > C then C, healed = C2, lost end
  gen = g
end

-- @advance
t = max(now, T)
local boundaries = t < b0 and -1 or t < b1 and 0 or t < b2 and 1 or t < b3 and 2 or 3
if boundaries > w then C = 0 end
T, w = t, boundaries

-- @same
(since < b0 and -1 or since < b1 and 0 or since < b2 and 1 or since < b3 and 2 or 3) == boundaries

-- @fresh
life = 0
if C > 0 then life = (boundaries < 1 and b1 or boundaries < 2 and b2 or boundaries < 3 and b3 or t + b3 - b0) - t end
-- @state
value = pack('>BI6I7I7', 99, gen, T, C)
us = us + t - now -- gone before the clock is at the boundary, it would be fresh twice

-- @receipt_shift
if (charged < b0 and -1 or charged < b1 and 0 or charged < b2 and 1 or charged < b3 and 2 or 3) ~= boundaries then a = 0 end
-- @receipt_back
C = max(0, C - min(unused, a))
-- @receipt_lasting
lasting = b3 - b0
