-- Anchored window: FixedWindow whose windows begin with a key's first charge and last for
-- P us; at most B units in each.
--
-- State: time T of the last charge, the window's beginning S, and the units C in it. C is
-- 0 if there is no window.
local B, P
B, P, at = read('>I7I7', arg, at)
local T, S, C = 0, 0, 0

-- learn: of two windows that are open at once, one has been lost by Redis. The earlier one
-- is the one that would be open had it not been.
local function learn(state)
  if byte(state) ~= 97 or #state ~= 28 then return false end
  local _, g, T2, S2, C2 = read('>BI6I7I7I7', state)
  if g < gen then return true end
  if S2 + P <= T2 then S2 = T2 end -- under this limit the window would have been over
  local newest = max(T, T2)
  if S + P <= newest then C = 0 end
  if S2 + P <= newest then C2 = 0 end
  if C2 > 0 then
    if C2 > C then healed = true end
    if C == 0 or S2 < S then S = S2 end
    C = max(C, C2)
  end
  T, gen = newest, g
  return true
end

local function advance()
  t = max(now, T)
  if S + P <= t then C = 0 end
  if C == 0 then S = t end
  T = t
end

local function view() return C, S, lent end

-- same reports whether a lease of a time is of the window of t.
local function same(us) return C > 0 and us >= S end

local function fresh() return C > 0 and S + P - t or 0 end
local function state() return pack('>BI6I7I7I7', 97, gen, T, S, C) end
