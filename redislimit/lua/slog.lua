-- Log: SlidingLog. At most B units count, each for P us.
--
-- State: a list of the times of the units that count, oldest first, a time for each unit;
-- or, of a blocked key, 'until' and a time as the only element. A list has no expiry of its
-- own: RPUSH comes first, since it alone can fail for want of memory.
-- @limit
B, P
-- @format
I7I7
-- @flow

local function time(element)
  local us = string.find(element, '^%d+$') and tonumber(element)
  return us and us <= LARGEST and us
end

-- Of length elements, the old ones no longer count. No list of others is changed if its ends
-- are not two times in order.
local length, old, newest = call('LLEN', key), 0, 0
if length > 0 then
  local last, oldest = call('LINDEX', key, -1), 0
  if length == 1 and sub(last, 1, 5) == 'until' then
    old, blocked = 1, time(sub(last, 6))
  else
    newest, oldest = time(last), time(call('LINDEX', key, 0))
  end
  if not (oldest and newest and blocked) or oldest > newest then return redis.error_reply(FOREIGN) end
end
t = max(now, newest)

local function timeAt(i) return tonumber(call('LINDEX', key, i)) or 0 end

-- expired is how many of the oldest units no longer count. Mostly they are few, so the
-- steps of the search grow from there.
local function expired()
  local low, high, step = old, length, 1
  while low < high do
    local i = min(low + step, high) - 1
    if timeAt(i) + P > t then
      high = i
      break
    end
    low, step = i + 1, step * 2
  end
  while low < high do
    local i = floor((low + high) / 2)
    if timeAt(i) + P <= t then low = i + 1 else high = i end
  end
  return low
end

local function put(element, times)
  local chunk = {}
  for i = 1, min(times, 1000) do chunk[i] = element end
  while times >= 1000 do
    call('RPUSH', key, unpack(chunk))
    times = times - 1000
  end
  if times > 0 then call('RPUSH', key, unpack(chunk, 1, times)) end
end

local function expire(us)
  call('PEXPIRE', key, tostring(min(floor(us / 1000) + 1 + spare, 99999999999999)))
end

local function block_until(us)
  blocked = us
  put('until' .. string.format('%.0f', us), 1)
  call('LTRIM', key, -1, -1)
  expire(us - t)
end

old = expired()
local active = length - old
if op == 2 then
  call('DEL', key)
  active, blocked = 0, 0
elseif blocked > t then
  active = 0
  if op == 3 then block_until(min(max(blocked, t + P), LARGEST)) end
else
  local units = min(debt, max(0, B - active))
  if op == 3 then
    if n <= B - active - units then m = 1 end -- Take would have been admitted
    units = units + min(n, B) -- of more, the newest count
  elseif op == 0 and k > 0 then
    m = min(k, floor(max(0, B - active - units) / n))
    units = units + m * n
  end
  if units > 0 then
    put(string.format('%.0f', t), units)
    local first = max(old, length + units - max(B, active))
    if first > 0 then call('LTRIM', key, first, -1) end
    active, newest = length + units - first, t
  end
  if op == 1 and active > 0 then
    call('LTRIM', key, 0, -(n + 1))
    active = max(0, active - n)
    if active > 0 then newest = timeAt(-1) end
  end
  if m < k and block > 0 and op == 0 then
    block_until(min(t + max(block, newest + P - t), LARGEST))
  elseif units > 0 then
    expire(P)
  end
end
if op == 3 then n = 1 end -- what the reply tells of

local going, value = 0, ''
if blocked > t then
  value = pack('>BI6I7', BLOCKED, 0, blocked)
elseif active + n > B then
  going = timeAt(n - B - 1) -- has to, for n more to fit
end
return pack('>I7I4I7I7I7', t, m, active, newest, going) .. value
