-- Every script is head.lua and flow.lua, in which each @name stands for the section of that
-- name in the files of its shape; the log has its own flow: see scripts.go. There are no
-- functions, since each call of a script would make them anew, which took longer than all
-- the rest.
--
-- KEYS[1] is the key, ARGV[1] is packed: a head that all shapes share, what the shape
-- needs of the limit, leases, and the last state that the caller has seen of the key, or
-- nothing.
--
-- All numbers are whole and below 2^53, so that doubles hold them exactly; so are all
-- sums, and products. Where a product can be larger it is taken off one that is not: what
-- is then below 0 counts as 0, and is, however the product was rounded.
--
--   op     0 admit up to k calls of n units, 1 give back n units, 2 make the key fresh;
--          n is then the burst; 3 charge n units whether they are there or not; 4 see receipts.lua
--   now    us of Unix time, or 0 to ask Redis
--   spare  ms to add to every expiry
--   block  us for which a denied call blocks its key, or 0
--   debt   units that were admitted without Redis: they count first, as far as they fit,
--          unless the key is made fresh, or is blocked
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
local key, arg, call = KEYS[1], ARGV[1], redis.call
local floor, max, min = math.floor, math.max, math.min
local pack, read, byte, sub = struct.pack, struct.unpack, string.byte, string.sub

local LARGEST = 9007199254740991 -- 2^53 - 1
local HALF = 4503599627370495    -- half of it: the most units that a count can be charged
local BLOCKED = 66               -- first byte of the state of a blocked key
local FOREIGN = 'SLUICEFOREIGN the key holds a value that redislimit has not written'

local op, k, n, now, spare, block, debt, @limit, at = read('>BI4I7I7I4I7I7@format', arg)
local lend, share, epoch, since, spent, unused = 0, 1, 0, 0, 0, 0
if op > 7 then
  op = op - 8
  lend, share, epoch, since, spent, unused, at = read('>I7I4I4I7I7I7', arg, at)
end
@receipt_arguments
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- t is the time of the judgement, never before what the key has seen. A higher generation
-- of a state says that units have been given back, or that a hold has been settled. It is at
-- least the time of the last refund or reset, in steps of 100 us.
local t, gen, blocked = now, 0, 0
local m, lent = 0, 0 -- calls admitted, units lent
