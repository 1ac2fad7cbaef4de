-- Every script is head.lua, the file of its shape, and tail.lua: see scripts.go.
--
-- KEYS[1] is the key, ARGV[1] is packed: a head that all shapes share, what the shape
-- needs of the limit, and the last state that the caller has seen of the key, or nothing.
-- Functions are few, since each call of a script makes them anew.
--
-- All numbers are whole and below 2^53, so that doubles hold them exactly; so are all
-- sums and products here.
--
--   op     0 admit up to k calls of n units, 1 give back n units, 2 make the key fresh;
--          n is then the burst
--   now    us of Unix time, or 0 to ask Redis
--   spare  ms to add to every expiry
--   block  us for which a denied call blocks its key, or 0
--   debt   units that were admitted without Redis: they count first, as far as they fit
--
-- The reply is packed, too: the time of the judgement, the calls admitted, three numbers
-- of the shape, and the state that is now stored, or nothing.
local key, arg = KEYS[1], ARGV[1]
local floor, max, min = math.floor, math.max, math.min
local pack, read, byte = struct.pack, struct.unpack, string.byte
local call = redis.call

local op, k, n, now, spare, block, debt, at = read('>BI4I7I7I4I7I7', arg)
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local LARGEST = 9007199254740991 -- 2^53 - 1
local BLOCKED = 66               -- first byte of the state of a blocked key
local FOREIGN = 'SLUICEFOREIGN the key holds a value that redistier has not written'

-- What is known of the key. A higher generation says that units have been given back.
local gen, blocked, healed = 0, 0, false
local t, m = now, 0 -- time of the judgement, never before what the key has seen; calls admitted
