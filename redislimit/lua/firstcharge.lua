-- Window from the first charge: FixedWindow whose windows begin with a key's first charge and last for
-- P us; at most B units in each.
--
-- State: time T of the last charge, the window's beginning S, and the units C in it. C is
-- 0 if there is no window.
-- @limit
B, P
-- @format
I7I7
-- @variables
local T, S, C = 0, 0, 0
-- @view
C, S, lent

-- @learn
-- Of two windows that are open at once, one has been lost by Redis. The earlier one is the
-- one that would be open had it not been.
if byte(state) ~= 97 or #state ~= 28 then return redis.error_reply(FOREIGN) end
local g, T2, S2, C2 = read('>I6I7I7I7', state, 2)
if g >= gen then
  if S2 + P <= T2 then S2 = T2 end -- under this limit the window would have been over
  local newest = max(T, T2)
  if S + P <= newest then C = 0 end
  if S2 + P <= newest then C2 = 0 end
  if C2 > 0 then
    if C2 > C then healed = lost end
    if C == 0 or S2 < S then S = S2 end
    C = max(C, C2)
  end
  T, gen = newest, g
end

-- @advance
t = max(now, T)
if S + P <= t then C = 0 end
if C == 0 then S = t end
T = t

-- @same
C > 0 and since >= S

-- @fresh
life = C > 0 and S + P - t or 0
-- @state
value = pack('>BI6I7I7I7', 97, gen, T, S, C)

-- @receipt_shift
if C == 0 or charged < S then a = 0 end
-- @receipt_back
C = max(0, C - min(unused, a))
