-- Every script is head.lua, the file of its shape, what that shares with others, and
-- tail.lua: see scripts.go.
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
-- If the caller takes leases, 8 is added to op, and more follows:
--
--   lend   units to lend if all k calls are admitted, or 0: at most this, and at most
--   share  the part of what is then left that one over this is
--   epoch  ms for which a lease is not taken for spent at least
--   since  time of the reply that has lent what is settled now: of it
--   spent  units have been admitted, and
--   unused are given back
--
-- The reply is packed, too: the time of the judgement, the calls admitted, three numbers
-- of the shape, of which the third is the units lent, and the state that is now stored, or
-- nothing.
local key, arg = KEYS[1], ARGV[1]
local floor, max, min = math.floor, math.max, math.min
local pack, read, byte = struct.pack, struct.unpack, string.byte
local call = redis.call

local op, k, n, now, spare, block, debt, at = read('>BI4I7I7I4I7I7', arg)
local lend, share, epoch, since, spent, unused = 0, 1, 0, 0, 0, 0
if op > 7 then
  op = op - 8
  lend, share, epoch, since, spent, unused, at = read('>I7I4I4I7I7I7', arg, at)
end
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local LARGEST = 9007199254740991 -- 2^53 - 1
local BLOCKED = 66               -- first byte of the state of a blocked key
local FOREIGN = 'SLUICEFOREIGN the key holds a value that redistier has not written'

-- What is known of the key. A higher generation says that units have been given back.
local gen, blocked, healed = 0, 0, false
local t, m, lent = now, 0, 0 -- time of the judgement, never before what the key has seen; calls admitted; units lent
