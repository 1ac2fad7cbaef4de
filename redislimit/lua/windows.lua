-- Leases of windows, and of refills at intervals. It makes no difference when in its window
-- a unit is admitted: so units that are lent are charged, and are given back within their
-- window or not at all. The generation is raised, or who has seen them charged would
-- put them back. @same says whether a lease is of the window of t.
-- @lend
units = lent
@charge
-- @settle
if unused > 0 and @same then
  units = unused
  @giveback
  if had > 0 then gen, settled = gen + 1, true end
end
