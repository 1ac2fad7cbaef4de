-- All calls or none. KEYS[i] is the key of call i, ARGV[i] is packed: the letter of its shape, flags, and the arguments of the shape's own script. The flags are a
-- character from '0' on, the sum of:
--   0 to 3: it can deny the whole call: 0 no, 1 yes, 2 except by a block, 3 except for want of room
--   4: its units are the rest of the calls before it    8: its units are the same as the call before has made
--   16: it decides the units of calls behind it         32: and takes as many as there is room for
--   64: if it was made before, the calls behind it change nothing
-- A key may come more than once: then the calls add up. Behind the keys come the two that keep the holds of each call whose letter is a
-- capital. There are functions here, since one script has all shapes.
--
-- The calls run one after another as they would by themselves, but on what they read only: what they
-- would write goes into a journal, and later ones read it from there. If no call stands in the way, the journal is
-- written. If any does, nothing is but the blocks of keys that have stood in the way, and the replies tell
-- how keys stand.
--
-- The reply is an array: whether each call fits, as a text of 0 and 1, and a reply for each. If units are divided, the text goes on with the units of each call.
local run = {}
local redis_call = redis.call
@shapes

local journal, values, expiries, lists, more, instant

local function forget()
  journal, values, expiries, lists, more = {}, {}, {}, {}, {}
end

-- A list, without having written to it: the elements from lo to hi - 1 of the real one, and a tail.
local function list(key)
  local l = lists[key]
  if not l then
    l = {lo = 0, hi = redis_call('LLEN', key), tail = {}}
    lists[key] = l
  end
  return l
end

local reads = {
  TIME = function()
    instant = instant or redis_call('TIME') -- they are judged together
    return instant
  end,
  GET = function(key)
    return values[key] or redis_call('GET', key)
  end,
  PTTL = function(key)
    return expiries[key] or redis_call('PTTL', key)
  end,
  LLEN = function(key)
    local l = list(key)
    return l.hi - l.lo + #l.tail
  end,
  LINDEX = function(key, i)
    local l = list(key)
    local real = l.hi - l.lo
    if i < 0 then i = real + #l.tail + i end
    if i < real then return redis_call('LINDEX', key, l.lo + i) end
    return l.tail[i - real + 1] or false
  end,
}

-- Of holds, only their number changes what later calls read: no two calls are of the same hold, and one that has lapsed
-- tells so itself.
for _, command in ipairs({'HGET', 'HMGET', 'ZSCORE', 'ZCARD', 'ZRANGEBYSCORE'}) do
  reads[command] = function(...) return redis_call(command, ...) end
end
function reads.HLEN(key) return redis_call('HLEN', key) + (more[key] or 0) end

local writes = {
  HSET = function(key) more[key] = (more[key] or 0) + 1 end,
  HDEL = function(key, ...)
    for i = 1, select('#', ...) do
      if redis_call('HGET', key, (select(i, ...))) then more[key] = (more[key] or 0) - 1 end
    end
  end,
  ZADD = function() end,
  ZREM = function() end,
  ZREMRANGEBYSCORE = function() end,
  SET = function(key, value, _, ms)
    values[key], expiries[key] = value, tonumber(ms)
  end,
  RPUSH = function(key, ...)
    local tail = list(key).tail
    for i = 1, select('#', ...) do tail[#tail + 1] = (select(i, ...)) end
  end,
  -- The tail is short, or all that is left.
  LTRIM = function(key, first, last)
    local l = list(key)
    local real = l.hi - l.lo
    local size = real + #l.tail
    if first < 0 then first = math.max(0, size + first) end
    if last < 0 then last = size + last end
    local tail = {}
    for i = math.max(first - real, 0), last - real do tail[#tail + 1] = l.tail[i + 1] end
    l.hi = l.lo + math.max(math.min(real, last + 1), 0)
    l.lo, l.tail = math.min(l.lo + first, l.hi), tail
  end,
  PEXPIRE = function() end,
  DEL = function(key)
    lists[key] = {lo = 0, hi = 0, tail = {}}
  end,
}

local function pretend(command, ...)
  local read = reads[command]
  if read then return read(...) end
  writes[command](...)
  journal[#journal + 1] = {command, ...}
end

local function write()
  for _, entry in ipairs(journal) do redis_call(unpack(entry)) end
end

local side, sides = #ARGV + 1, {}
for i = 1, #ARGV do
  if string.byte(ARGV[i]) < 97 then sides[i], side = side, side + 2 end
end

local function judge(i, arg, call)
  local at = sides[i] or #KEYS + 1
  return run[string.sub(ARGV[i], 1, 1)](KEYS[i], arg, call, KEYS[at], KEYS[at + 1])
end

local function looking(i)
  local op = string.byte(ARGV[i], 3)
  local n = (op == 0 or op == 4) and string.sub(ARGV[i], 8, 14) or struct.pack('>I7', 1)
  return struct.pack('>BI4', 0, 0) .. n .. string.sub(ARGV[i], 15)
end

local function look(i, call) return judge(i, looking(i), call) end

local said = {[4294967294] = 'SLUICEHOLDS the key has too many holds', [4294967293] = 'SLUICEOTHERHOLD the id is that of another hold', [4294967292] = 'SLUICEENDEDHOLD the hold of the id has ended'}
local fits, replies, sums, all = {}, {}, {}, true
local left, made, divided, units = 0, 0, false, {} -- of the calls whose units others decide
local again = false -- a call with 64 was made before

-- The argument of a call, whose units are now known.
local function argument(i, flags)
  local op, k, n = struct.unpack('>BI4I7', ARGV[i], 3)
  if flags >= 4 then
    divided = true
    if flags % 16 >= 4 then
      n = flags % 16 >= 8 and made or left
      if n == 0 then op, k = 0, 0 end
      ARGV[i] = string.sub(ARGV[i], 1, 2) .. struct.pack('>BI4I7', op, k, math.max(n, 1)) .. string.sub(ARGV[i], 15)
    end
  end
  if flags < 32 then return string.sub(ARGV[i], 3), op, k, n end
  return struct.pack('>BI4I7', op, n > 0 and math.min(n, 4294967295) or 0, 1) .. string.sub(ARGV[i], 15), op, k, n
end

forget()
for i = 1, #ARGV do -- what has lapsed has, whether the calls are made or not
  local reply = sides[i] and look(i, function(command, ...)
    if command == 'TIME' then return reads.TIME() end
    return redis_call(command, ...)
  end)
  if type(reply) == 'table' then return reply end
end
for i = 1, #ARGV do
  local key, flags = KEYS[i], string.byte(ARGV[i], 2) - 48
  local governs = flags >= 64
  if again then ARGV[i], flags = string.sub(ARGV[i], 1, 2) .. looking(i), 0 elseif governs then flags = flags - 64 end
  local arg, op, k, n = argument(i, flags)
  local before = op == 1 and flags >= 16 and look(i, pretend)
  if type(before) == 'table' then return before end
  local reply = judge(i, arg, pretend)
  if type(reply) == 'table' then return reply end
  again = again or governs and string.byte(reply, 47) == 1
  fits[i], replies[i + 1], units[i] = '1', reply, n
  if flags >= 32 then
    units[i] = struct.unpack('>I4', reply, 8)
  elseif before then
    local now, last = struct.unpack('>I7I7', before, 12) -- units in flight count in two windows
    units[i] = math.min(n, now + (string.sub(ARGV[i], 1, 1) == 'f' and last or 0))
  end
  if flags % 16 < 8 then left, made = n - units[i], units[i] end
  if flags % 4 > 0 then
    local m = struct.unpack('>I4', reply, 8)
    if m > k then return redis.error_reply(said[m] or 'SLUICENOTHELD there is no such hold') end
    if flags % 4 == 3 then n = 0 end
    sums[key] = (sums[key] or 0) + n
    if m < k then
      fits[i], all = '0', false
      ARGV[i] = string.sub(ARGV[i], 1, 7) .. struct.pack('>I7', sums[key]) .. string.sub(ARGV[i], 15)
      sums[key] = sums[key] - n
    end
  end
end
if all then
  write()
else
  for i = 1, #ARGV do -- what stands in the way may block its key
    local arg = string.sub(ARGV[i], 3)
    if fits[i] == '0' and (string.byte(ARGV[i], 2) - 48) % 4 == 1 and struct.unpack('>I7', arg, 24) > 0 then
      forget()
      if struct.unpack('>I4', judge(i, arg, pretend), 8) == 0 then write() end
    end
  end
  forget()
  for i = 1, #ARGV do replies[i + 1] = look(i, pretend) end
end
if divided then
  for i = 1, #ARGV do fits[#fits + 1] = struct.pack('>I7', units[i]) end
end
replies[1] = table.concat(fits)
return replies
