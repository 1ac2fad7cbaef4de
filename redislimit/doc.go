// Package redislimit shares limits between replicas: each key has one budget in Redis,
// whatever the number of processes that charge it.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	limiter, err := redislimit.New(client, redislimit.Config{
//		Limit:  sluice.PerHour(1000).WithBurst(20),
//		Prefix: "rl:api",
//	})
//	...
//	d, err := limiter.Take(ctx, "user:42", 1)
//
// It has the algorithms of package sluice, and decides as that package does: exactly, in whole
// numbers, in one step and one round trip. There are four differences.
//
//   - Arrivals are judged in whole microseconds, rounded down. Limits whose numbers would not
//     fit use steps of up to a millisecond. New refuses limits that do not fit even then.
//     RetryAfter and ResetAfter are rounded up to such steps.
//   - Rates whose interval is no whole number of nanoseconds are exact. (Package sluice
//     moves arrivals by less than a nanosecond there.)
//   - If a clock goes back, calls are judged at the newest time at which the key has been
//     charged. No unit is given away, and no unit comes back until the clock has reached that time
//     again. After a step of J, a key that is spent is denied for up to J longer than
//     RetryAfter and ResetAfter say, since they count from that time.
//   - A new limit applies to a key as if it had been set at the key's last charge: units
//     that were spent by then still count, and come back at the new rate from then on.
//
// An error means that the decision is unknown. It is never a denial, and a denial
// is never an error. A call whose answer got lost may have been charged, and is not sent
// again.
//
// # Redis forgets
//
// A limiter remembers the last state that it has seen of a key, and sends it with its next
// call for the key. If Redis has lost the state, in a restart without data, a FLUSHALL, an eviction, or
// a failover to a replica that was behind, the script restores it. So spent units stay spent
// for every key whose last state was seen by a process that is still alive: that process restores the state
// with its next call for the key. A log is not restored, since its state is a list. Units that other
// processes admit before then add to the states that those have seen, not to the restored state.
//
// # Tier
//
// A Tier before a Limiter bounds how long calls take, lets callers of a key share a call of
// the script, remembers denials, and enforces a share of the limit when Redis does not
// answer. With leases it admits most calls for busy keys without asking Redis, and nothing
// beyond the limit.
//
// # Store
//
// A Store is a Tier of many limits, which share all of that. Calls that several of them judge go out in one
// pipeline, or in one script that makes all of them or none. A Store also counts denied calls, and finds out by
// itself how many processes there are.
//
// A limit of a Store can have holds: OpHold sets an estimate apart under an id, and OpSettle tells in any process the units
// used of it.
//
// A Limiter or a Tier is a httplimit.Remote: a policy of httplimit or grpclimit can count with it.
//
// # Redis
//
// The package works with Redis 5 and later, and with other servers that run its scripts: alone, with Sentinel, and
// as a cluster. Each call names exactly one key, or with holds three in one slot. Users with ACLs need +evalsha, +eval, and inside of scripts
// +get +set +pttl +time, for the log +llen +lindex +rpush +ltrim +pexpire +del, for processes
// that count each other +zadd +zrem +zremrangebyscore +zcard +pexpire, and for holds +hget +hmget +hset +hdel +hlen +zadd
// +zrem +zrangebyscore +zremrangebyscore +zscore +zcard +pexpire. Keys are named prefix~x:key, where x is
// one of b, w, i, a, s, l, f. For a key of more than 128 bytes, or with a { in it, the name has the key's SHA-256
// instead, after a # instead of the colon. So the text of a key is never a hash tag of a cluster; a hash tag in the
// Prefix is one. Keys of a Store are named prefix~x{tag}~name~key, and prefix~replicas. With holds x is a capital, and the
// holds of a key are in {its name}h and {its name}t or, if it has a hash tag, behind an h and a t after the x. Every key expires when it
// would be fresh.
package redislimit
