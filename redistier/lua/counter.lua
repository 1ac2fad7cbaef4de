-- Counter: FixedWindow, and TokenBucket with refills at intervals. At each boundary,
-- k*P + offset, R units come back, in a window all of them; at most B count.
--
-- State: time T of the last charge, and the units C that counted then.
local B, R, P, offset
B, R, P, offset, at = read('>I7I7I7I7', arg, at)
local T, C = 0, 0

-- after is what counts of units after a time, T <= us.
local function after(units, from, us)
  local passed = floor((us - offset) / P) - floor((from - offset) / P)
  if passed > floor((units - 1) / R) then return 0 end
  return units - passed * R
end

local function learn(state)
  if byte(state) ~= 99 or #state ~= 21 then return false end
  local _, g, T2, C2 = read('>BI6I7I7', state)
  if g < gen then return true end
  if T2 > T then
    C, T = after(C, T, T2), T2
  elseif T2 < T then
    C2 = after(C2, T2, T)
  end
  if C2 > C then C, healed = C2, true end
  gen = g
  return true
end

local function advance()
  t = max(now, T)
  C, T = after(C, T, t), t
end

local function view() return C, 0, lent end

-- same reports whether a lease of a time is of the window, or of the refill, of t.
local function same(us) return floor((us - offset) / P) == floor((t - offset) / P) end

local function fresh() return (floor((t - offset) / P) + floor((C - 1) / R) + 1) * P + offset - t end
local function state() return pack('>BI6I7I7', 99, gen, T, C) end
