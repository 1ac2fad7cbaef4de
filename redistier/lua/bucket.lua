-- Bucket: GCRA, TokenBucket and LeakyBucket. A unit costs U sub-units of debt, and a step
-- of G us drains R of them; the debt is at most B. Invariant: B + R < 2^53.
--
-- State: time T, debt D in sub-units, their number U in a unit. If units are on lease, the
-- length E of an epoch in ms, and the units lent in this epoch, O1, and in the one before,
-- O2: they count, and do not drain. A lease that is not settled by the end of the next
-- epoch has been spent: its units are debt from then on.
local U, R, B, G
U, R, B, G, at = read('>I7I7I7I4', arg, at)
local T, D, E, O1, O2 = 0, 0, 0, 0, 0

-- drained is what is left of a debt after a time, which is a multiple of G.
local function drained(debt, us)
  local steps = us / G
  if steps > floor((debt - 1) / R) then return 0 end
  return debt - steps * R
end

-- learn takes a state in, which is stored, or has been. It fails if it is none of ours.
local function learn(state, stored)
  local size = #state
  if byte(state) ~= 98 or size ~= 28 and size ~= 46 then return false end
  local _, g, T2, D2, Q, p = read('>BI6I7I7I7', state)
  if g < gen then return true end
  if Q ~= U then
    -- D2 = ceil(D2 * U / Q), so never a gift. The product need not fit, so that the part
    -- below a unit takes a long multiplication: sum + carry/Q is that of the bits so far.
    local units, rest, sum, carry, bits, u = floor(D2 / Q), D2 % Q, 0, 0, {}, U
    while u > 0 do
      bits[#bits + 1] = u % 2
      u = floor(u / 2)
    end
    for i = #bits, 1, -1 do
      sum = sum * 2
      if carry >= Q - carry then sum, carry = sum + 1, carry - (Q - carry) else carry = carry * 2 end
      if bits[i] == 1 then
        if carry >= Q - rest then sum, carry = sum + 1, carry - (Q - rest) else carry = carry + rest end
      end
    end
    if carry > 0 then sum = sum + 1 end
    if units > floor((LARGEST - R - sum) / U) then D2 = LARGEST - R else D2 = units * U + sum end
  end
  T2 = T2 + -T2 % G -- the step at or after it: another limit's steps may be finer
  if T2 > T then
    D, T = drained(D, T2 - T), T2
  elseif T2 < T then
    D2 = drained(D2, T - T2)
  end
  if D2 > D then D, healed = D2, true end
  gen = g
  if stored and size == 46 then E, O1, O2 = read('>I4I7I7', state, p) end
  return true
end

local function advance()
  t = max(now - now % G, T)
  if O1 + O2 > 0 then
    local us = E * 1000
    local first = floor(T / us)
    for i = 1, min(floor(t / us) - first, 2) do -- at the end of an epoch
      local edge = (first + i) * us
      edge = edge + -edge % G
      D, T = min(drained(D, edge - T) + min(O2, floor(B / U)) * U, LARGEST - R), edge
      O1, O2 = 0, O1
    end
    t = max(t, T)
  end
  D, T = drained(D, t - T), t
end

local function view() return D, O1 + O2, lent end
local function free() return max(0, floor((B - D) / U) - O1 - O2) end
local function charge(units) D = D + units * U end

-- hold sets units apart. The longest epoch of all callers holds: with a longer one, what is
-- out stays out for longer.
local function hold(units)
  if O1 + O2 == 0 then
    E = epoch
  elseif epoch > E then
    E, O1, O2 = epoch, O1 + O2, 0
  end
  O1 = O1 + units
end

-- settle makes debt of what a lease has spent, and frees the rest. Within its own epoch
-- after it was lent, a lease is still out, unless Redis has lost it; and of the units of
-- others none is taken.
local function settle()
  if O1 + O2 == 0 or t - since >= epoch * 1000 then return false end
  local age = floor(t / (E * 1000)) - floor(since / (E * 1000))
  local out = age == 0 and O1 or age == 1 and O2 or 0
  local used = min(spent, out)
  local settled = used + min(unused, out - used)
  D = min(D + min(used, floor(B / U)) * U, LARGEST - R)
  if age == 0 then O1 = O1 - settled elseif age == 1 then O2 = O2 - settled end
  return settled > 0
end

-- giveBack gives back units, or all, and reports whether there were any.
local function giveBack(units)
  local had = D
  D = units and max(0, D - units * U) or 0
  return had > 0
end

-- fresh is the time until the key is as if fresh, if nothing that is lent comes back.
local function fresh()
  local us = (floor((D - 1) / R) + 1) * G
  if O1 + O2 > 0 then us = us + 2000 * E + (floor((O1 + O2) * U / R) + 1) * G end
  return us
end

local function state()
  local s = pack('>BI6I7I7I7', 98, gen, T, D, U)
  if O1 + O2 > 0 then s = s .. pack('>I4I7I7', E, O1, O2) end
  return s
end
