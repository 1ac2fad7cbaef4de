-- Holds of windows: units on hold count as spent, from the time on when they were held. What was not used comes back if it
-- still counts.
-- @receipt_charge
@charge
@cap
-- @receipt_seen
-- Once all that the caller has seen has come back it makes no difference.
stale = newer and @receipt_counts > 0
-- @receipt_lost
-- @receipt_late
-- @receipt_lasting
lasting = 2 * P
-- @receipt_settle
@receipt_back
units = max(0, n - total)
@charge
@cap
-- @receipt_lapse
if backs then
  local unused = total
  @receipt_shift
  @receipt_back
  gen = gen + 1
end
