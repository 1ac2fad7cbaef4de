-- Sliding window counter. Windows are [k*P + offset, (k+1)*P + offset) us; n units are
-- admitted iff
--
--   prev * (P - elapsed) + (cur + n) * P <= B * P
--
-- with P and elapsed, rounded down, in steps of G us. Invariant: B * (P/G) < 2^53.
--
-- State: time T of the last charge, the counts of its window and of the one before, and
-- the windows that these are of: period, offset and step.
local B, P, offset, G
B, P, offset, G, at = read('>I7I7I7I4', arg, at)
local T, cur, prev = 0, 0, 0

local function window(us) return floor((us - offset) / P) end

-- rolled is what the counts of a time are at a later one.
local function rolled(cur, prev, from, us)
  local passed = window(us) - window(from)
  if passed == 0 then return cur, prev end
  if passed == 1 then return 0, cur end
  return 0, 0
end

local function learn(state)
  if byte(state) ~= 115 or #state ~= 44 then return false end
  local _, g, T2, cur2, prev2, P2, offset2, G2 = read('>BI6I7I7I7I7I7I2', state)
  if g < gen then return true end
  if P2 ~= P or offset2 ~= offset then
    -- Of the previous one of other windows, ceil(prev * part/steps) units counted. The
    -- product fits unless prev is of a limit before that limit.
    local steps = P2 / G2
    local part = steps - floor((T2 - offset2) % P2 / G2)
    if prev2 <= floor((LARGEST - steps) / part) then prev2 = floor((prev2 * part + steps - 1) / steps) end
    cur2, prev2 = cur2 + prev2, 0
  end
  if T2 > T then
    cur, prev = rolled(cur, prev, T, T2)
    T = T2
  elseif T2 < T then
    cur2, prev2 = rolled(cur2, prev2, T2, T)
  end
  if cur2 > cur or prev2 > prev then healed = true end
  cur, prev, gen = max(cur, cur2), max(prev, prev2), g
  return true
end

local function advance()
  t = max(now, T)
  cur, prev = rolled(cur, prev, T, t)
  T = t
end

local function view() return cur, prev, lent end

-- same reports whether a lease of a time is of the window of t.
local function same(us) return window(us) == window(t) end

-- free: prev may be of a larger limit, so that its product is formed only if it fits.
local function free()
  local steps = P / G
  local left = steps - floor(((t - offset) % P) / G)
  local whole = B * steps
  if prev > floor(whole / left) then return 0 end
  return max(0, floor((whole - prev * left) / steps) - cur)
end
local function charge(units) cur = cur + units end

local function giveBack(units)
  if cur == 0 and prev == 0 then return false end
  units = units or LARGEST
  cur, prev = max(0, cur - units), max(0, prev - max(0, units - cur))
  return true
end

local function fresh()
  if cur == 0 and prev == 0 then return 0 end
  return (window(t) + (cur > 0 and 2 or 1)) * P + offset - t
end

local function state() return pack('>BI6I7I7I7I7I7I2', 115, gen, T, cur, prev, P, offset, G) end
