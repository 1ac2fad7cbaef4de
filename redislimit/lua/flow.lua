-- The flow that all shapes but the log share. A denied call stores nothing, unless it
-- blocks the key, or Redis has lost what the caller has seen.
--
-- Of a shape, @learn takes in a state, @advance goes on to t, @room says how many units
-- would be admitted, and @fresh the life in us that the key has until it is as if fresh;
-- @charge charges units, and @cap takes off what is more than numbers can be; @giveback
-- gives back units and says how many it had, @lend lends
-- and @settle settles; @state packs the state, and @view is what the reply tells of it.
--
-- The @receipt_ sections are for holds: see receipts.lua. Limits without holds have nothing in their place.
@variables
@receipt_variables
local stored, seen = call('GET', key) or '', sub(arg, at)
local state, value, lost, was, healed = stored, stored, false, 0, false
while true do
  if state == '' then
    -- it tells nothing
  elseif (byte(state, 8) or 32) > 31 then
    -- A time is there in all of ours. It is below 2^53, so that no text looks like one.
    return redis.error_reply(FOREIGN)
  elseif byte(state) == BLOCKED and #state == 14 then
    local g, till = read('>I6I7', state, 2)
    if g >= gen then blocked, gen = max(blocked, till), g end
  else
    @receipt_learn
    @learn
    @receipt_seen
  end
  if lost then break end
  was = blocked
  if seen == '' or seen == stored then break end
  state, lost = seen, true
end

@receipt_pass
@advance
local us, store, settled, units, had, life, room = 0, false, false, 0, 0, 0, 0
if spent + unused > 0 and blocked <= t then
  @fresh
  us = life -- a key that a lease gives units back to stays for as long as without, too
  @settle
end
if debt > 0 and op ~= 2 and blocked <= t then
  @room
  debt = min(debt, room)
  units = debt
  @charge
end
if op == 2 then
  @fresh
  us = max(us, life, blocked - t)
  units = LARGEST
  @giveback
  units = n
  @charge
  @fresh
  us = max(us, life) -- others may have seen more than this
  units = LARGEST
  @giveback
  gen, blocked, store = max(gen + 1, floor(t / 100)), 0, true
  @receipt_reset
@receipt_call
elseif op == 3 then
  units = n
  @charge
  @cap
  @fresh
  us, store = max(us, life), true
  if blocked > t then -- at least for as long as the units would count
    blocked = min(max(blocked, t + life), LARGEST)
    value = pack('>BI6I7', BLOCKED, gen, blocked)
  end
elseif blocked > t then
  value = pack('>BI6I7', BLOCKED, gen, blocked)
  store = blocked > was
elseif op == 1 then
  @fresh
  us = max(us, life)
  units = n
  @giveback
  if had > 0 then gen = max(gen + 1, floor(t / 100)) end
  store = settled or had > 0
else
  if k > 0 then
    @room
    m = floor(room / n)
    if m > k then m = k end
    units = m * n
    @charge
  end
  if lend > 0 and m == k then
    @room
    lent = min(lend, floor(room / share))
    if lent > 0 then
      @lend
    end
  end
  local blocks = m < k and block > 0
  if m > 0 or settled or debt > 0 or healed or blocks then
    @fresh
    if blocks then
      blocked = min(t + max(block, life), LARGEST)
      value = pack('>BI6I7', BLOCKED, gen, blocked)
    end
    us = max(us, life)
    store = blocks or m > 0 or settled or life > 0
  end
end

-- A key that has been given back units stays for as long as it would have without: a
-- caller that has seen it before must find out. A denial stands whether it can be stored
-- or not.
@receipt_store
if store then
  if blocked > t then
    us = blocked - t
  else
    @state
    @receipt_state
  end
  local ms = floor(us / 1000) + 1 + spare
  if gen > @receipt_birth then ms = max(ms, call('PTTL', key)) end
  if op == 0 and m == 0 and (k > 0 or debt == 0) then call = redis.pcall end
  @receipt_wrote call('SET', key, value, 'PX', tostring(min(ms, 99999999999999)))
  @receipt_forget
end
return pack('>I7I4I7I7I7', t, m, @view) .. @receipt_reply value
