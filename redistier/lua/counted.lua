-- What the shapes share that count units C, of which at most B fit.
local function free() return max(0, B - C) end
local function charge(units) C = C + units end

local function giveBack(units)
  local had = C
  C = units and max(0, C - units) or 0
  return had > 0
end
