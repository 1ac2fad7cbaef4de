-- InFlight: units in use at once. It is the sliding window counter with the window before counted in full, so that a unit
-- counts until it is given back, and else until the second window after its own begins:
--
--   prev + cur + n <= B
--
-- The other sections are in sliding.lua. G is 1, and means nothing.
-- @variables
local T, cur, prev = 0, 0, 0
local w = floor((T - offset) / P)
local lapsed = 0 -- units of a hold that is extended which no longer count
-- @fade

-- @room
room = max(0, B - prev - cur) - lapsed
-- @giveback
-- The window before comes first, so that what remains does not come back before its time.
had = cur + prev
cur, prev = max(0, cur - max(0, units - prev)), max(0, prev - units)

-- @receipt_shift
local gone = window - floor((charged - offset) / P)
if gone > 0 then a, b = 0, gone == 1 and a or 0 end
if ends > t then lapsed = total - a - b end -- it has not lapsed itself
-- @receipt_charge
-- An extension renews the whole hold: all its units count from now on.
local renewed = min(b, prev)
cur, prev = min(cur + units + renewed + lapsed, HALF), prev - renewed
if renewed > 0 then gen = gen + 1 end
a, b = total, 0
