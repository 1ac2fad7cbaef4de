// Package sluice decides, per key and in tens of nanoseconds, whether a call may
// pass now. It lives inside the server that it protects: it needs no external
// store, keeps no goroutine, and nothing has to be closed.
//
//	lim, err := sluice.New(sluice.Config{Limit: sluice.PerSecond(100).WithBurst(20)})
//
// Most callers need one of five methods:
//
//	if lim.Allow("user:42") { ... }             // one unit, now or never
//	if lim.AllowN("user:42", 5) { ... }         // five units, all or none
//	d := lim.Take("user:42", 5)                 // and details for the client: Remaining, RetryAfter
//	err := lim.Wait(ctx, "user:42", 1)          // wait for it
//	p, err := lim.Acquire("user:42", 1)         // under InFlight, until p.Release
//
// k := lim.Key("user:42") hashes the key once, and has these methods and all others.
//
// # Which algorithm when
//
// All do exactly as they define, and run on the same engine.
//
//   - [GCRA], the default: a sustained rate with a burst, paced smoothly. Take this
//     one unless there is a reason not to.
//   - [TokenBucket] decides like GCRA. Take it to speak of tokens, or with
//     [TokenBucketInterval] to hand out a period's tokens at once.
//   - [LeakyBucket], as a meter, decides like GCRA. Take it for Wait and Reserve, which
//     make it a queue that lets calls pass at even distances.
//   - [SlidingWindow]: N in any window while calls come evenly, for the price of a
//     counter. It assumes that the previous window's cost was spread evenly. If that cost
//     came all at once, almost 2*N can pass within a period.
//   - [SlidingLog]: at most N in any window, exactly, for 8*N bytes a key and limits
//     up to 1<<20. The worst case is 8*N*MaxKeys bytes, and about a fifth on top.
//   - [FixedWindow]: at most N in each calendar second, minute or day, as quotas are
//     sold; with [PerCalendar] in each day or month of a time zone. Up to 2*N can pass around a boundary. Config.Offset
//     moves the boundaries; with [FixedWindowFirstCharge] they are each key's own.
//   - [InFlight]: at most N units in use at once, given back when they end: see
//     [Limiter.Acquire]. It is no rate, but goes together with rates in [TakeAll] and [WaitAll].
//
// [Limiter.WorstCase] states the most that each admits in any span of time: under GCRA
// and the buckets the burst and the units that come back meanwhile, so 2*N within a period
// if the burst is the rate, N, as it is without [Limit.WithBurst].
//
// # Around a decision
//
// [Limiter.Take] describes the decision, for the client. [TakeAll] charges several keys or none,
// [Key.TakeUpTo] as many units as there are, and [Key.Debit] any number, as a debt
// if they are not there.
//
// [Limiter.Wait] waits until a call is admitted, and [Key.Reserve] gives a turn to come and a
// reservation, to be settled when the cost is known; [WaitAll] waits for the turn of several
// keys. [Reservation.Extend] asks for more while a stream grows. [Key.Refund] gives back units that
// turned out not to count. [Key.Block], and Config.BlockFor, shut out a key for a while.
//
// [Limiter.SetLimit] and [Key.SetLimit] change limits while decisions run, and
// [Key.WithLimit] takes a limit that comes with the request. Config.Shadow
// tries a limit out. [Limiter.Stats] counts the decisions and [Limiter.TopDenied] lists keys, if the
// [Config] asks for them. [Limiter.Snapshot] and [Limiter.Restore] carry keys to the next process.
//
// # How the controls combine
//
// Denials, and the settings that change their effect:
//
//	            a denied call            the key then               beside the others
//	none        is denied                is as it was
//	CountDenied is charged, as far as    has spent more, at most    without effect beside
//	            the limit goes           its limit                  BlockFor
//	BlockFor    blocks its key           denies every call to the   counts from the first
//	                                     end of the block, and is   denial: a denied call for
//	                                     fresh then                 a blocked key adds nothing
//	Soft        comes after the soft     as the other settings say  the soft units, too, must
//	            units are spent, too                                be spent before a call is
//	                                                                denied
//	Shadow      passes, with WouldDeny   as the other settings say  counted, blocked and listed
//	                                                                as if it had been denied
//
// Refund gives back units that count, admitted or counted by CountDenied, but none of a blocked
// key. Debit makes a block longer. Reset and Unblock end it. These neither charge nor block: a cost
// that every state of a key denies (below 0, or above the burst and Soft), a Peek, a cost of 0, and a
// Wait or Reserve that fails. A TakeAll with a denied charge changes the key of each charge that is
// denied itself, as a denied Take would, and no other key.
//
// # Coming from another limiter
//
// A Limiter keeps a budget for each key; one for all callers is k := lim.Key("").
//
//	golang.org/x/time/rate
//	  NewLimiter(r, b)                 PerSecond(r).WithBurst(b)
//	  Every(d), Inf                    Per(1, d), Unlimited
//	  AllowN(t, n)                     k.AllowN(n), or k.AllowAt(now, n) by its Clock
//	  WaitN(ctx, n)                    k.Wait(ctx, n)
//	  ReserveN(t, n)                   k.Reserve(n, Never)
//	  SetLimit, SetBurst               lim.SetLimit
//	  Tokens                           k.Status().Remaining
//	github.com/throttled/throttled
//	  RateQuota{PerSec(r), m}          PerSecond(r).WithBurst(m+1)
//	  RateLimit(key, n)                lim.Take(key, n)
//	github.com/ulule/limiter
//	  "10-M"                           ParseLimit("10/m"); FixedWindowFirstCharge
//	  Get, Peek                        lim.Take(key, 1), lim.Peek(key, 0)
//	github.com/sethvargo/go-limiter
//	  Tokens: n, Interval: d           Per(n, d); FixedWindowFirstCharge
//	  Set, Burst                       k.SetLimit and k.Reset: nothing lifts a key
//	                                   above its burst
//	github.com/juju/ratelimit
//	  NewBucketWithQuantum(d, b, n)    Per(n, d).WithBurst(b)
//	  TakeMaxDuration(n, d)            k.Reserve(n, d)
//	  TakeAvailable(n)                 k.TakeUpTo(n)
//	go.uber.org/ratelimit
//	  New(r, WithSlack(m))             PerSecond(r).WithBurst(m + 1), and k.Debit(m) at first
//	  Take                             k.Reserve(1, Never), and sleep for its Delay
//	github.com/failsafe-go/failsafe-go
//	  NewBursty(n, d)                  Per(n, d); TokenBucketInterval
//	  NewSmoothWithMaxRate(d)          Per(1, d); the same, or GCRA, which has turns to reserve
//	  TryAcquirePermits(n)             k.AllowN(n)
//
// These differ:
//
//   - Rates are whole numbers: half a unit a second is Per(1, 2*time.Second).
//   - A Burst of 0 is the Rate, where x/time/rate admits nothing. A Rate of 0 denies all, where
//     x/time/rate admits a burst.
//   - A cost of 0 asks whether a unit is there, where x/time/rate always admits it.
//   - Cancel gives back the units that the key would have without the reservation, also when the turn
//     has begun. x/time/rate gives back fewer, and none once the turn has begun.
//   - A larger burst can be used at once, where x/time/rate fills it up at the rate.
//   - Remaining is never negative, and above the burst nothing is reserved: Debit makes a debt.
//   - RetryAfter is 0 for a call that is admitted, and Never if no wait helps, where throttled has
//     -1 for both.
//   - Peek of a key with nothing left is not Allowed; under ulule/limiter the limit is reached by the
//     call after that.
//
// Under HTTP, see package httplimit.
//
// # Promises
//
// No decision uses floating point, and nothing drifts: after k periods exactly
// k*Rate units have come back. If Period/Rate is not a whole number of
// nanoseconds, an arrival is judged up to 1 ns earlier. New refuses a limit that
// cannot be kept exactly in 64 bits. RetryAfter is exact to the
// nanosecond.
//
// A key is idle once it can no longer be told from a fresh one. A sweep forgets idle
// keys, which never changes a decision. Memory is bounded by MaxKeys: from 10,000 keys
// on 18 to 30 bytes a key, none of which the garbage collector has to look
// into. (SlidingLog takes its logs on top, and a log of more than 32
// units is an object of its own.)
//
// Decision paths do not allocate, except for a new key now and then, when its table
// grows, and under SlidingLog, when it gets its log.
//
// # Limitations
//
// Keys are tracked by a 64-bit hash. Two of n live keys share one, and so a
// budget, with a chance of about n*n/2^65: 3e-8 at a million keys.
//
// State is in memory: it ends with the process, unless a Snapshot of it has been
// taken, and is not shared between processes.
//
// At MaxKeys the overflow policy gives something up: the state of the keys that
// would soonest be idle (OverflowEvictSoonest), the new keys (OverflowDenyNew), or their limit
// (OverflowAdmitNew). Stats counts how often.
//
// A call judged at an older time than its key has seen (Key.AllowAt) is judged
// strictly. WorstCase then holds for the newer time: in the windows, and with a
// refill at intervals, a call counts as made in the key's window, not in its own.
package sluice
