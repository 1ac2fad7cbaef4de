-- Sliding window counter. Windows are [k*P + offset, (k+1)*P + offset) us; n units are
-- admitted iff
--
--   prev * (P - elapsed) + (cur + n) * P <= B * P
--
-- with P and elapsed, rounded down, in steps of G us. Invariant: B * (P/G) < 2^53.
--
-- State: time T of the last charge, the counts of its window, whose number is w, and of the
-- one before, and the windows that these are of: period, offset and step.
-- @limit
B, P, offset, G
-- @format
I7I7I7I4
-- @variables
local T, cur, prev = 0, 0, 0
local w = floor((T - offset) / P)
-- @view
cur, prev, lent

-- @learn
if byte(state) ~= 115 or #state ~= 44 then return redis.error_reply(FOREIGN) end
local g, T2, cur2, prev2, P2, offset2, G2 = read('>I6I7I7I7I7I7I2', state, 2)
if g >= gen then
  if P2 ~= P or offset2 ~= offset then
    @fade
    cur2, prev2 = cur2 + prev2, 0
  end
  local w2 = floor((T2 - offset) / P)
  if w2 > w then
    cur, prev = 0, w2 == w + 1 and cur or 0
  elseif w2 < w then
    cur2, prev2 = 0, w == w2 + 1 and cur2 or 0
  end
  if T2 > T then T, w = T2, w2 end
  if cur2 > cur or prev2 > prev then healed = lost end
  cur, prev, gen = max(cur, cur2), max(prev, prev2), g
end

-- @fade
-- Of the previous one of other windows, ceil(prev * part/steps) units counted. The
-- product fits unless prev is of a limit before that limit.
local steps = P2 / G2
local part = steps - floor((T2 - offset2) % P2 / G2)
if prev2 <= floor((LARGEST - steps) / part) then prev2 = floor((prev2 * part + steps - 1) / steps) end

-- @advance
t = max(now, T)
local window = floor((t - offset) / P)
if window > w then cur, prev = 0, window == w + 1 and cur or 0 end
T, w = t, window

-- @same
floor((since - offset) / P) == window

-- @room
-- prev may be of a larger limit, so that its product is formed only if it fits.
local steps = P / G
local left = steps - floor(((t - offset) % P) / G)
local whole = B * steps
room = prev <= floor(whole / left) and max(0, floor((whole - prev * left) / steps) - cur) or 0
-- @charge
cur = cur + units
-- @cap
cur = min(cur, HALF)
-- @giveback
had = cur + prev
cur, prev = max(0, cur - units), max(0, prev - max(0, units - cur))

-- @fresh
life = cur + prev > 0 and (window + (cur > 0 and 2 or 1)) * P + offset - t or 0
-- @state
value = pack('>BI6I7I7I7I7I7I2', 115, gen, T, cur, prev, P, offset, G)

-- @receipt_shift
local gone = window - floor((charged - offset) / P)
if gone > 0 then a, b = 0, gone == 1 and a or 0 end
-- @receipt_counts
cur2 + prev2
-- @receipt_back
local back = min(unused, a)
cur, prev = max(0, cur - back), max(0, prev - min(unused - back, b))
