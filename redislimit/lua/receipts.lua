-- Holds. A hold has an id, units, and a time when it lapses. KEYS[2] is a hash of the open holds of the key by id, and
-- KEYS[3] a sorted set of the times when they lapse, in us. KEYS[1] remembers of them what every call needs, so that a
-- call without a hold reads neither of the two: H units on hold that are apart from those that have been spent, a time L before
-- which none lapses, and the time M when the last one does. Without holds the two have expired, or have been lost: then
-- what was on hold has been spent.
--
-- It also remembers since which generation, birth, its data have been there. When there are none, the next call begins a
-- new life of the key, at a generation that no earlier life has had, that of the time. So, by its generation g, a state that a caller has seen is
--
--   g >= gen          newer, and has been lost since: it is merged, and with it all open holds that are stored have ended
--   birth <= g < gen  older
--   g < birth         of an earlier life: all that counts in it is merged as spent, unless it is older than those of that life,
--                     which began at first, that have been merged: first <= g < past, and its time is not after theirs, latest.
--                     It can be after: a replica without the settlements of the others has taken over in that life
--
-- Of two states that are merged, each count is the larger one. After a reset birth is 0.
--
-- A record is the units of a hold, when it lapses, when it has last been charged, what of its units count in the window
-- of that time and in the one before, and the units that it was made with; and 1 if its units come back when it lapses, plus 2
-- if its id is of the caller's choice; behind them the steps of its extensions. Open holds are in the sorted set behind a +. The id of such a one that has ended, or
-- of any that was settled with a ttl, stays there, behind a -, until it would have lapsed, or for ttl after it was settled; so do the units that it was made with, behind a =,
-- and, if that ttl is not 0, those that were used, behind a #. Whoever tries again to make or to settle it finds out that this has been done.
--
-- More follows the arguments that concern leases:
--
--   what   1 hold n units, 2 settle: n have been used, 3 hold n more; if op is 4
--   ttl    us until it lapses, or 0 to leave that time as it is; of a settlement, us for which it is known, or 0
--   most   open holds a key may have
--   beyond units that a settlement charges at most beyond those that were held
--   flags  1 and 2 as above; 4 to hold the units whether there is room or not; 8 to hold none where there is no room, and be made
--          all the same; 16 to refuse the id of a hold that has ended
--   id     of the hold
--   step   16 bytes that name an extension in its hold, or nothing
--
-- The reply has three numbers more: the units of the hold, before it was settled; M; and 1 if this has been done before, so that
-- nothing has changed, 2 if a settlement was cut, or 3 if flag 8 has let pass what holds nothing. Instead of the calls admitted it has 1 if the hold has been made or changed, 0
-- if there is no room, and the numbers below.
-- @receipt_arguments
local what, ttl, most, beyond, flags, id, step
what, ttl, most, beyond, flags, id, step, at = read('>BI7I4I7BBc0Bc0', arg, at)
-- @receipt_variables
local NOTHELD, TOOMANY, OTHER, ENDED = 4294967295, 4294967294, 4294967293, 4294967292
local said, told = 0, 0
local H, L, M, H2, L2, M2 = 0, 0, 0, 0, 0, 0
local dropped, ended, mark, held, units, lapses, made, wanted = false, false, false, 0, 0, 0, '', 0
local birth, first, past, latest = 0, 0, 0, 0
local written = 0 -- time of what is stored
local newer, earlier, stale = false, false, false
-- @receipt_learn
if #state < 47 then return redis.error_reply(FOREIGN) end
local g, at2 = read('>I6I7', state, 2)
local birth2, first2, past2, latest2
H2, L2, M2, birth2, first2, past2, latest2 = read('>I7I7I7I6I6I6I7', state, #state - 45)
state = sub(state, 1, #state - 46)
if not lost then
  H, L, M, birth, first, past, latest, written = H2, L2, M2, birth2, first2, past2, latest2, at2
elseif stored == '' then
  L, M, first, past, latest = L2, M2, birth2, g, at2
elseif g > gen then
  newer, birth, first, past, latest = true, birth2, first2, past2, latest2
elseif g < birth and (g < first or g >= past or at2 > latest) then
  earlier = true
  if g >= past then first, past = birth2, g end
  if g >= first then latest = max(latest, at2) end
  state = sub(state, 1, 1) .. pack('>I6', gen) .. sub(state, 8)
end

-- @receipt_pass
if stored == '' then
  gen = max(gen + 1, floor(max(now, T) / 100))
  birth = gen
end
-- Holds have ended since the server was a replica, and it does not know which. What the caller has seen has what they used,
-- and none of those that are open here gives anything back.
if stale then call('PEXPIRE', holds, '0') end
-- Holds that have lapsed do so at their own times, one after another. Those that had when the state was written are left
-- over from a key that has expired since.
if holds and not stale and (L > 0 and max(now, T) >= L or op == 4 and stored == '') then
  local asked, till, from = now, max(now, T), 0
  local limit = string.format('%.0f', till)
  dropped = {}
  repeat
    local due = call('ZRANGEBYSCORE', times, '-inf', limit, 'LIMIT', tostring(from), '100')
    for i = 1, #due do due[i] = byte(due[i]) == 43 and sub(due[i], 2) or '' end
    local records = #due > 0 and call('HMGET', holds, unpack(due)) or due
    for i = 1, #due do
      if records[i] then
        local total, ends, charged, a, b, _, kind = read('>I7I7I7I7I7I7B', records[i])
        local backs = kind % 2 == 1
        if ends > written then
          now = ends
          @receipt_late
          @advance
          @receipt_lapse
        end
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
  local once, none, always = flags > 15, flags % 16 > 7, flags % 8 > 3
  flags = flags % 4
  local total, ends, charged, a, b, kind, extended = 0, 0, t, 0, 0, flags, ''
  wanted = n
  if record then
    extended = sub(record, 44)
    total, ends, charged, a, b, wanted, kind = read('>I7I7I7I7I7I7B', record)
    if ends <= t then -- it has lapsed just now
      record, total, charged, a, b, wanted, kind, extended = false, 0, t, 0, 0, n, flags, ''
    end
    @receipt_shift
  end
  held = total
  local more, known = 0, false
  if what < 3 and not record then
    known = tonumber(call('ZSCORE', times, '-' .. id) or 0) > t
  end
  local number = pack('>I7', n)
  if what == 1 then
    if record then
      m, said = wanted == n and kind == flags and 1 or OTHER, 1 -- a call that is tried again
    elseif known then
      m, said = tonumber(call('ZSCORE', times, '=' .. number .. id) or 0) > t and (once and ENDED or 1) or OTHER, 1
    elseif call('HLEN', holds) - lapses >= most then
      m = TOOMANY
    else
      @room
      if n <= room or always then m, more, store = 1, n, true elseif none then m, said, store = 1, 3, true end
    end
  elseif not record then
    said = 1
    m = what == 2 and known and ttl > 0 and tonumber(call('ZSCORE', times, '#' .. number .. id) or 0) > t and 1 or NOTHELD
  elseif what == 3 then
    local again = false
    for i = 1, step ~= '' and #extended or 0, 16 do again = again or sub(extended, i, i + 15) == step end
    if again then
      m, said = 1, 1
    elseif step ~= '' and #extended >= 16384 then
      m = TOOMANY
    else
      @room
      if n <= room or always then m, more, store = 1, n, true elseif none then m, said, store = 1, 3, true end
      if store then extended = extended .. step end
    end
  else
    m, store, ended = 1, true, true
    mark = (kind > 1 or ttl > 0) and call('ZCARD', times) < 4 * most and max(ends, t + ttl)
    told = n
    if n - total > beyond then n, said = total + beyond, 2 end
    local unused = max(0, total - n)
    @receipt_settle
    -- Whoever has seen this tells a replica that has not. It is one more, and not the time: else a process that settles at
    -- the replica before would outdo all that others have seen.
    gen = gen + 1
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
    call('HSET', holds, id, pack('>I7I7I7I7I7I7B', total, ends, t, a, b, wanted, kind) .. extended)
    call('ZADD', times, string.format('%.0f', ends), '+' .. id)
    call('PEXPIRE', holds, lasting)
    call('PEXPIRE', times, lasting)
  elseif store then
    @fresh
    us = max(us, life)
  end
-- @receipt_store
if (debt > 0 or dropped or stale or healed) and not store then
  @fresh
  us, store = max(us, life), true
end
-- @receipt_birth
birth
-- @receipt_reset
birth, first, past, latest = 0, 0, 0, 0
H, L, M = 0, 0, 0
if holds then call('PEXPIRE', holds, '0') end -- open holds would give back units of others
-- @receipt_state
value = value .. pack('>I7I7I7I6I6I6I7', H, L, M, birth, first, past, latest)
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
    if mark then
      local score = string.format('%.0f', mark)
      call('ZADD', times, score, '-' .. id, score, '=' .. pack('>I7', wanted) .. id)
      if ttl > 0 then call('ZADD', times, score, '#' .. pack('>I7', told) .. id) end
      if mark > M then call('PEXPIRE', times, tostring(min(floor((mark - t) / 1000) + 1 + spare, 99999999999999))) end
    end
  end
end
-- @receipt_reply
pack('>I7I7B', held, M, said) ..
