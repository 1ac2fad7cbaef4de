-- The flow that all shapes but the log share. A denied call stores nothing, unless it
-- blocks the key, or Redis has lost what the caller has seen.

-- keep stores a state until us from t. A key that has been given back units stays for as
-- long as it would have without: a caller that has seen it before must find out. A denial
-- stands whether it can be stored or not.
local function keep(state, us)
  local ms = floor(us / 1000) + 1 + spare
  if gen > 0 then ms = max(ms, call('PTTL', key)) end
  local set = call
  if op == 0 and m == 0 and (k > 0 or debt == 0) then set = redis.pcall end
  set('SET', key, state, 'PX', tostring(min(ms, 99999999999999)))
  return state
end

local stored = call('GET', key) or ''
local value, was = stored, 0
for i = 1, 2 do
  local lost = i == 2
  local s = lost and string.sub(arg, at) or stored
  if lost then was, healed = blocked, false end
  if s == '' or lost and s == stored then
    -- it tells nothing
  elseif byte(s) == BLOCKED and #s == 14 then
    local _, g, till = read('>BI6I7', s)
    if g >= gen then blocked, gen = max(blocked, till), g end
  elseif not learn(s, not lost) then
    return redis.error_reply(FOREIGN)
  end
end

advance()
local us, settled = 0, false -- a key that a lease gives units back to stays for as long as without, too
if spent + unused > 0 and blocked <= t then
  us = fresh()
  settled = settle()
end
if op == 2 then
  us = max(us, fresh(), blocked - t)
  giveBack()
  charge(n)
  us = max(us, fresh()) -- others may have seen more than this
  giveBack()
  gen, blocked = max(gen + 1, floor(t / 1000)), 0
  value = keep(state(), us)
elseif blocked > t then
  value = pack('>BI6I7', BLOCKED, gen, blocked)
  if blocked > was then keep(value, blocked - t) end
elseif op == 1 then
  us = max(us, fresh())
  if giveBack(n) then
    gen = max(gen + 1, floor(t / 1000))
    settled = true
  end
  if settled then value = keep(state(), us) end
else
  if debt > 0 then
    debt = min(debt, free())
    charge(debt)
  end
  if k > 0 then m = min(k, floor(free() / n)) end
  if m > 0 then charge(m * n) end
  if lend > 0 and m == k then
    lent = min(lend, floor(free() / share))
    if lent > 0 then hold(lent) end
  end
  if m < k and block > 0 then
    blocked = min(t + max(block, fresh()), LARGEST)
    value = keep(pack('>BI6I7', BLOCKED, gen, blocked), blocked - t)
  elseif m > 0 or settled or (debt > 0 or healed) and fresh() > 0 then
    value = keep(state(), max(us, fresh()))
  end
end
return pack('>I7I4I7I7I7', t, m, view()) .. value
