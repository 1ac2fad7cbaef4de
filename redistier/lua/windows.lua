-- Leases of windows, and of refills at intervals. It makes no difference when in its window
-- a unit is admitted: so units that are lent are charged, and are given back within their
-- window or not at all. The generation is raised, or who has seen them charged would
-- put them back.
local function hold(units) charge(units) end

local function settle()
  if unused == 0 or not same(since) or not giveBack(unused) then return false end
  gen = gen + 1
  return true
end
