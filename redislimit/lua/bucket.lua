-- Bucket: GCRA, TokenBucket and LeakyBucket. A unit costs U sub-units of debt, and a step
-- of G us drains R of them; the debt is at most B. Invariant: B + R < 2^53.
--
-- State: time T, debt D in sub-units, their number U in a unit. If units are on lease, the
-- length E of an epoch in ms, and the units lent in this epoch, O1, and in the one before,
-- O2: they count, and do not drain. A lease that is not settled by the end of the next
-- epoch has been spent: its units are debt from then on.
-- @limit
U, R, B, G
-- @format
I7I7I7I4
-- @variables
local T, D, E, O1, O2 = 0, 0, 0, 0, 0
-- @view
D, O1 + O2 @receipt_out, lent

-- @learn
local size = #state
if byte(state) ~= 98 or size ~= 28 and size ~= 46 then return redis.error_reply(FOREIGN) end
local g, T2, D2, Q, p = read('>I6I7I7I7', state, 2)
if g >= gen then
  if Q ~= U then
    -- D2 = ceil(D2 * U / Q), so never a gift. The product need not fit, so that the part
    -- below a unit takes a long multiplication: sum + carry/Q is that of the bits so far.
    local whole, rest, sum, carry, bits, u = floor(D2 / Q), D2 % Q, 0, 0, {}, U
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
    if whole > floor((LARGEST - R - sum) / U) then D2 = LARGEST - R else D2 = whole * U + sum end
  end
  T2 = T2 + -T2 % G -- the step at or after it: another limit's steps may be finer
  @receipt_lost
  if T2 > T then
    D, T = max(0, D - (T2 - T) / G * R), T2
  elseif T2 < T then
    D2 = max(0, D2 - (T - T2) / G * R)
  end
  @receipt_ended
  if D2 > D then D, healed = D2, lost end
  gen = g
  if size == 46 and not lost then E, O1, O2 = read('>I4I7I7', state, p) end
end

-- @advance
t = max(now - now % G, T)
if O1 + O2 > 0 then
  local epochs = E * 1000
  local first = floor(T / epochs)
  for i = 1, min(floor(t / epochs) - first, 2) do -- at the end of an epoch
    local edge = (first + i) * epochs
    edge = edge + -edge % G
    D, T = min(max(0, D - (edge - T) / G * R) + min(O2, floor(B / U)) * U, LARGEST - R), edge
    O1, O2 = 0, O1
  end
  t = max(t, T)
end
D, T = max(0, D - (t - T) / G * R), t

-- @room
room = max(0, floor((B - D) / U) - O1 - O2 @receipt_held)
-- @charge
D = D + units * U
-- @cap
D = min(D, LARGEST - R)
-- @giveback
had = D
D = max(0, D - units * U)

-- @lend
-- The longest epoch of all callers holds: with a longer one, what is out stays out for
-- longer.
if O1 + O2 == 0 then
  E = epoch
elseif epoch > E then
  E, O1, O2 = epoch, O1 + O2, 0
end
O1 = O1 + lent

-- @settle
-- What a lease has spent becomes debt, and the rest is free. Within its own epoch after it
-- was lent, a lease is still out, unless Redis has lost it; and of the units of others none
-- is taken.
if O1 + O2 > 0 and t - since < epoch * 1000 then
  local age = floor(t / (E * 1000)) - floor(since / (E * 1000))
  local out = age == 0 and O1 or age == 1 and O2 or 0
  local used = min(spent, out)
  local gone = used + min(unused, out - used)
  D = min(D + min(used, floor(B / U)) * U, LARGEST - R)
  if age == 0 then O1 = O1 - gone elseif age == 1 then O2 = O2 - gone end
  settled = gone > 0
end

-- @fresh
-- If nothing that is lent comes back.
life = (floor((D - 1) / R) + 1) * G
if O1 + O2 > 0 then life = life + 2000 * E + (floor((O1 + O2) * U / R) + 1) * G end
@receipt_life

-- @state
value = pack('>BI6I7I7I7', 98, gen, T, D, U)
if O1 + O2 > 0 then value = value .. pack('>I4I7I7', E, O1, O2) end

-- @receipt_held
- H
-- @receipt_out
+ H
-- @receipt_life
if H > 0 then life = life + max(0, M - t) + (floor(min(H * U, B) / R) + 1) * G end
-- @receipt_late
now = now + -now % G
-- @receipt_lasting
lasting = (floor(B / R) + 1) * G
-- @receipt_lost
-- Redis has lost a newer state. Holds that it has lost with it count as spent, from when they would have lapsed or from
-- now on. Of two states of one step the one with less debt is older: a hold that lapses becomes debt.
local gone = newer or earlier or stored == ''
local out = gone and H2 or max(0, H2 - H)
if lost and out > 0 and (gone or T2 > T or T2 == T and D2 >= D) then
  local from = max(T2, min(now, M2))
  from = from + -from % G
  D2 = min(max(0, D2 - (from - T2) / G * R) + min(out * U, B), LARGEST - R)
  T2 = from
end
-- @receipt_ended
if newer and D2 > 0 then -- all holds that it has count as spent
  stale = true
  local from = max(T, min(now, M))
  from = from + -from % G
  local gone = (from - T) / G * R
  D, D2, T = min(max(0, D - gone) + min(H * U, B), LARGEST - R), max(0, D2 - gone), from
  H = 0
end
