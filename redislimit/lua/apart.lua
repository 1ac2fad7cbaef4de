-- Holds of shapes whose units come back by and by: units on hold are apart from those that have been spent, and none of
-- them comes back. What a hold has used is spent from the time on when it is settled, or lapses.
-- @receipt_charge
H = min(H + units, HALF)
-- @receipt_seen
-- @receipt_shift
-- @receipt_settle
H = max(0, H - total)
units = n
@charge
@cap
-- @receipt_lapse
local out = min(H, total)
H = H - out
if backs then
  gen = gen + 1
else
  units = out
  @charge
  @cap
end
