// Package redistier shares limits between replicas: each key has one budget in Redis,
// whatever the number of processes that charge it.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	limiter, err := redistier.New(client, redistier.Config{
//		Limit:  sluice.PerHour(1000).WithBurst(20),
//		Prefix: "rl:api",
//	})
//	...
//	d, err := limiter.Take(ctx, "user:42", 1)
//
// It has the algorithms of package sluice, and decides as that does: exactly, in whole
// numbers, in one step and one round trip. There are four differences.
//
//   - Arrivals are judged in whole microseconds, rounded down; limits whose numbers would not
//     fit use steps of up to a millisecond, and New refuses those that do not fit then.
//     RetryAfter and ResetAfter are rounded up to such steps.
//   - Rates whose interval is no whole number of nanoseconds are exact. (Package sluice
//     moves arrivals by less than a nanosecond there.)
//   - Where a clock goes back, calls are judged at the newest time that the key has been
//     charged at. Nothing is given away, and nothing comes back until the clock is there
//     again: after a step of J, a key that is spent is denied for up to J longer than
//     RetryAfter and ResetAfter say, since they count from that time.
//   - A new limit takes hold of a key as if it had been set at the key's last charge: units
//     that were spent then still count, and from then on come back at the new rate.
//
// An error says that nothing is known of the decision. It is never a denial, and a denial
// is never an error. A call whose answer got lost may have been charged, and is not sent
// again.
//
// # Redis forgets
//
// A limiter remembers the last state that it has seen of a key, and sends it with the next
// call for it. If Redis has lost it, in a restart without data, a FLUSHALL, an eviction, or
// a failover to a replica that was behind, the script puts it back. So what has been spent
// stays spent for every key that a living process has seen last; the log alone, whose
// state is a list, is not put back. That process puts it back with its next call for the key. Units
// that others are admitted before then add to what they have seen, and not to what it has.
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
// A Store is a Tier of many limits, which share all of that: calls that several of them judge are one
// pipeline, or one script that makes all of them or none. It counts denied calls, too, and finds out by itself how many
// processes there are.
//
// A Limiter or a Tier is a httplimit.Remote, by which a policy of httplimit counts.
//
// # Redis
//
// Redis 5 and later, and what runs its scripts, alone, with Sentinel, and as a cluster: each
// call names exactly one key. Users with ACLs need +evalsha, +eval, and inside of scripts
// +get +set +pttl +time, for the log +llen +lindex +rpush +ltrim +pexpire +del, and for processes
// that count each other +zadd +zrem +zremrangebyscore +zcard +pexpire. Keys are
// named prefix~x:key, x one of b, w, i, a, s, l; of a key of more than 128 bytes, or with a {
// in it, the SHA-256 stands in its place, after a # instead of the colon: so no text of a key
// is a hash tag of a cluster. One in the Prefix is. Those of a Store are named prefix~x{tag}~name~key, and
// prefix~replicas. Every key expires when it would be fresh.
package redistier
