-- Holds. A hold has an id, units, and a time when it lapses. KEYS[2] is a hash of the open holds of the key by id, and
-- KEYS[3] a sorted set of the times when they lapse, in us. KEYS[1] remembers of them what every call needs, so that a
-- call without a hold reads neither of the two: H units on hold that are apart from those that have been spent, a time L before
-- which none lapses, and the time M when the last one does. Without holds the two have expired, or have been lost: then
-- what was on hold has been spent.
--
-- A record is the units of a hold, when it lapses, when it has last been charged, and what of its units count in the window
-- of that time and in the one before; and 1 if its units come back when it lapses, plus 2 if its id is of the
-- caller's choice. The id of a hold that has ended stays in the sorted set, behind a -, until the hold would have lapsed:
-- whoever tries again to make it finds out that it has been made. Open holds are there behind a +.
--
-- More follows the arguments that concern leases:
--
--   what   1 hold n units, 2 settle: n have been used, 3 hold n more; if op is 4
--   ttl    us until it lapses, or 0 to leave that time as it is
--   most   open holds a key may have
--   flags  and
--   id     of the hold
--
-- The reply has two numbers more: the units of the hold, before it was settled, and M. Instead of the calls
-- admitted it has 1 if the hold has been made or changed, 0 if there is no room, and the two numbers below.
-- @receipt_arguments
local what, ttl, most, flags, id
what, ttl, most, flags, id, at = read('>BI7I4BBc0', arg, at)
-- @receipt_variables
local NOTHELD, TOOMANY = 4294967295, 4294967294
local H, L, M, H2, L2, M2 = 0, 0, 0, 0, 0, 0
local dropped, ended, mark, held, given, units, lapses, made = false, false, false, 0, false, 0, 0, ''
-- @receipt_learn
if #state < 22 then return redis.error_reply(FOREIGN) end
H2, L2, M2 = read('>I7I7I7', state, #state - 20)
state = sub(state, 1, #state - 21)
if not lost then
  H, L, M = H2, L2, M2
elseif stored == '' then
  L, M = L2, M2
end

-- @receipt_pass
-- Holds that have lapsed do so at their own times, one after another.
if holds and (L > 0 and max(now, T) >= L or op == 4 and stored == '') then
  local asked, till, from = now, max(now, T), 0
  local limit = string.format('%.0f', till)
  dropped = {}
  repeat
    local due = call('ZRANGEBYSCORE', times, '-inf', limit, 'LIMIT', tostring(from), '100')
    for i = 1, #due do due[i] = byte(due[i]) == 43 and sub(due[i], 2) or '' end
    local records = #due > 0 and call('HMGET', holds, unpack(due)) or due
    for i = 1, #due do
      if records[i] then
        local total, ends, charged, a, b, kind = read('>I7I7I7I7I7B', records[i])
        local backs = kind % 2 == 1
        now = ends
        @receipt_late
        @advance
        @receipt_lapse
        lapses = lapses + 1
      end
    end
    if #due > 0 then dropped[#dropped + 1] = due end
    from = from + 100
  until #due < 100
  now = asked
  dropped.limit = limit
  local first = call('ZRANGEBYSCORE', times, '(' .. limit, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  L = tonumber(first[2] or 0)
  if not first[1] and H > 0 then -- the rest has been lost
    local total, backs = H, false
    now = min(now, M)
    @receipt_late
    @advance
    @receipt_lapse
    now = asked
  end
end
-- @receipt_call
elseif op == 4 then
  @fresh
  us = max(us, life) -- a key that is given back units stays for as long as without
  local record = call('HGET', holds, id)
  local total, ends, charged, a, b, kind = 0, 0, t, 0, 0, flags
  if record then
    total, ends, charged, a, b, kind = read('>I7I7I7I7I7B', record)
    if ends <= t then -- it has lapsed just now
      record, total, charged, a, b, kind = false, 0, t, 0, 0, flags
    end
    @receipt_shift
  end
  held = total
  local more = 0
  if what == 1 then
    if record then
      m = 1 -- a call that is tried again
    elseif flags > 1 and tonumber(call('ZSCORE', times, '-' .. id) or 0) > t then
      m = 1
    elseif call('HLEN', holds) - lapses >= most then
      m = TOOMANY
    else
      @room
      if n <= room then m, more, store = 1, n, true end
    end
  elseif not record then
    m = NOTHELD
  elseif what == 3 then
    @room
    if n <= room then m, more, store = 1, n, true end
  else
    m, store, ended = 1, true, true
    mark = kind > 1 and call('ZCARD', times) < 2 * most and ends
    local unused = max(0, total - n)
    @receipt_settle
    if given then gen = max(gen + 1, floor(t / 1000)) end
  end
  if store and not ended then
    units = more
    @receipt_charge
    total, a = total + more, a + more
    held = total
    if ttl > 0 then ends = t + ttl end
    M, L = max(M, ends), L > 0 and min(L, ends) or ends
    @fresh
    us = max(us, life)
    local lasting = 0
    @receipt_lasting
    lasting = tostring(min(floor((M - t + lasting) / 1000) + 1 + spare, 99999999999999))
    made = id
    call('HSET', holds, id, pack('>I7I7I7I7I7B', total, ends, t, a, b, kind))
    call('ZADD', times, string.format('%.0f', ends), '+' .. id)
    call('PEXPIRE', holds, lasting)
    call('PEXPIRE', times, lasting)
  elseif store then
    @fresh
    us = max(us, life)
  end
-- @receipt_store
if dropped and not store then
  @fresh
  us, store = max(us, life), true
end
-- @receipt_state
value = value .. pack('>I7I7I7', H, L, M)
-- @receipt_wrote
local wrote =
-- @receipt_forget
-- After the state has been written: without memory it is not, and then the holds stay as well.
if not wrote or not wrote.err then
  if dropped then
    for _, due in ipairs(dropped) do
      for i = 1, #due do due[i] = due[i] ~= made and due[i] or '' end -- it has lapsed, and there is another one
      call('HDEL', holds, unpack(due))
    end
    call('ZREMRANGEBYSCORE', times, '-inf', dropped.limit)
  end
  if ended then
    call('HDEL', holds, id)
    call('ZREM', times, '+' .. id)
    if mark then call('ZADD', times, string.format('%.0f', mark), '-' .. id) end
  end
end
-- @receipt_reply
pack('>I7I7', held, M) ..
