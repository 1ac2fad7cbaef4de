-- What the shapes share that count units C, of which at most B fit.
-- @room
room = max(0, B - C)
-- @charge
C = C + units
-- @cap
C = min(C, HALF)
-- @giveback
had = C
C = max(0, C - units)
-- @receipt_counts
C2
