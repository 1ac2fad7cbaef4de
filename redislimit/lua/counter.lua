-- Counter: FixedWindow, and TokenBucket with refills at intervals. At each boundary,
-- k*P + offset, R units come back, in a window all of them; at most B count.
--
-- State: time T of the last charge, and the units C that counted then; w is the number of
-- boundaries up to T.
-- @limit
B, R, P, offset
-- @format
I7I7I7I7
-- @variables
local T, C = 0, 0
local w = floor((T - offset) / P)
-- @view
C, 0, lent

-- @learn
if byte(state) ~= 99 or #state ~= 21 then return redis.error_reply(FOREIGN) end
local g, T2, C2 = read('>I6I7I7', state, 2)
if g >= gen then
  local w2 = floor((T2 - offset) / P)
  if T2 > T then
    C, T, w = max(0, C - (w2 - w) * R), T2, w2
  elseif T2 < T then
    C2 = max(0, C2 - (w - w2) * R)
  end
  if C2 > C then C, healed = C2, lost end
  gen = g
end

-- @advance
t = max(now, T)
local boundaries = floor((t - offset) / P)
C, T, w = max(0, C - (boundaries - w) * R), t, boundaries

-- @same
floor((since - offset) / P) == boundaries

-- @fresh
life = (boundaries + floor((C - 1) / R) + 1) * P + offset - t
-- @state
value = pack('>BI6I7I7', 99, gen, T, C)
us = us + t - now -- gone before the clock is at the boundary, it would be fresh twice

-- @receipt_shift
if floor((charged - offset) / P) ~= boundaries then a = 0 end
-- @receipt_back
C = max(0, C - min(unused, a))
