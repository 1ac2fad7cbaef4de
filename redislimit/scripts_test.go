package redislimit

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/require"
)

// TestExpiry: every key goes, no earlier than it is fresh, and not much later.
func TestExpiry(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, v := range variants {
			require.NoError(t, keysExpire(t, s.client, v))
		}
	})
}

func keysExpire(tb testing.TB, client redis.UniversalClient, c Config) error {
	c.Limit, c.Offset = sluice.PerHour(10), 0
	for _, block := range []time.Duration{0, 30 * time.Minute} {
		c.BlockFor, c.Prefix = block, newPrefix()
		l := newLimiter(tb, client, c)
		for _, cost := range []int{1, 3, 7, 1} {
			began := time.Now()
			if err := keyExpires(tb, client, l, take(tb, l, "a", cost).ResetAfter, began); err != nil {
				return fmt.Errorf("%s after a charge of %d, block %v: %w", variantName(c), cost, block, err)
			}
		}
		if err := l.Refund(ctx, "a", 1); err != nil {
			return err
		}
		if err := keyExpires(tb, client, l, 0, time.Now()); err != nil {
			return fmt.Errorf("%s after a refund, block %v: %w", variantName(c), block, err)
		}
	}
	return nil
}

// keyExpires demands that key a expires once fresh, at most a second late, or with 0 at all. A call that was
// made after began has told of fresh.
func keyExpires(tb testing.TB, client redis.UniversalClient, l *Limiter, fresh time.Duration, began time.Time) error {
	ttl, err := client.PTTL(ctx, l.request(l.plan.Load(), "a").key).Result()
	require.NoError(tb, err)
	if ttl <= 0 || fresh > 0 && (ttl < fresh-time.Second-time.Since(began) || ttl > fresh+time.Second) {
		return fmt.Errorf("expires in %v, was fresh in %v, at most %v ago", ttl, fresh, time.Since(began))
	}
	return nil
}

// TestExpiry_Fresh: a key is there for as long as it counts: at its end it is fresh.
func TestExpiry_Fresh(t *testing.T) {
	s := anyServer(t)
	l := newLimiter(t, s.client, Config{Limit: sluice.Per(10, 50*time.Millisecond), Remember: -1})
	key := l.request(l.plan.Load(), "a").key
	for range 5 {
		take(t, l, "a", 10)
		for s.client.Exists(ctx, key).Val() > 0 {
			_, err := l.Peek(ctx, "a", 1)
			require.NoError(t, err)
		}
		d, err := l.Peek(ctx, "a", 10)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
}

// TestExpiry_ClockBack: a window that a clock has gone back within is not over before the clock says so: a
// caller that has not seen the key would be admitted a burst in it, and another one at its end.
func TestExpiry_ClockBack(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range []Config{{Algorithm: sluice.FixedWindow}, {Algorithm: sluice.TokenBucketInterval}} {
			c.Limit = sluice.PerHour(10)
			a, _, now := pair(t, s.client, c)
			a.spare = 1
			const hour, minute = 3_600_000_000, 60_000_000
			now.Store(startMicros - startMicros%hour + 50*minute)
			take(t, a, "a", 6)
			now.Add(-20 * minute)
			began := time.Now()
			take(t, a, "a", 1)
			require.NoError(t, keyExpires(t, s.client, a, 30*time.Minute, began), variantName(c))
		}
	})
}

// TestExpiry_Refund: a key that has been given back units stays for as long as it would
// have, or a replica that has seen it before would undo that.
func TestExpiry_Refund(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range healing() {
			c.Prefix = newPrefix()
			l := newLimiter(t, s.client, c)
			began := time.Now()
			full := take(t, l, "a", 10).ResetAfter
			require.NoError(t, l.Refund(ctx, "a", 10))
			require.NoError(t, keyExpires(t, s.client, l, full, began), variantName(c))
			take(t, l, "a", 1)
			require.NoError(t, keyExpires(t, s.client, l, full, began), variantName(c))
			require.NoError(t, l.Reset(ctx, "a"))
			take(t, l, "a", 1)
			require.NoError(t, keyExpires(t, s.client, l, full, began), variantName(c))
		}
	})
}

// TestDenied: a denied call stores nothing, and does not extend a key's life.
func TestDenied(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variants {
			c.Limit, c.Offset = sluice.PerHour(10), 0
			l := newLimiter(t, s.client, c)
			require.False(t, take(t, l, "a", 11).Allowed)
			key := l.request(l.plan.Load(), "a").key
			require.Zero(t, s.client.Exists(ctx, key).Val())
			take(t, l, "a", 10)
			before := s.client.Dump(ctx, key).Val()
			for range 3 {
				require.False(t, take(t, l, "a", 1).Allowed)
			}
			require.Equal(t, before, s.client.Dump(ctx, key).Val(), variantName(c))
		}
	})
}

// TestTime: Redis is asked for the time once in a call. (From 7.2 on it stands still in a
// script; before, two readings can lie on both sides of a boundary.)
func TestTime(t *testing.T) {
	eachServer(t, func(t *testing.T, shared *server) {
		s := start(t, shared.binary)
		defer s.kill()
		for _, v := range variants {
			require.NoError(t, timeOnce(t, s, v))
		}
	})
}

func timeOnce(tb testing.TB, s *server, c Config) error {
	c.Limit, c.Offset = sluice.PerHour(10), 0
	l := newLimiter(tb, s.client, c)
	take(tb, l, "a", 1) // EVAL, the first time
	require.NoError(tb, s.client.ConfigResetStat(ctx).Err())
	for range 20 {
		take(tb, l, "a", 1)
	}
	if scripts, times := callsOf(tb, s, "evalsha"), callsOf(tb, s, "time"); scripts != 20 || times != 20 {
		return fmt.Errorf("%s: %d scripts have asked for the time %d times", variantName(c), scripts, times)
	}
	return nil
}

func callsOf(tb testing.TB, s *server, command string) int {
	info, err := s.client.Info(ctx, "commandstats").Result()
	require.NoError(tb, err)
	_, rest, ok := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !ok {
		return 0
	}
	digits, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(digits)
	require.NoError(tb, err)
	return n
}

// TestPlanted: the tests of this package find faults in the scripts.
func TestPlanted(t *testing.T) {
	s := anyServer(t)
	for _, f := range []struct {
		name     string
		script   **script
		old, new string
		check    func() error
	}{
		{"expiry forgotten", &bucketScript, "'PX', tostring(min(ms, 99999999999999))", "'KEEPTTL'", func() error { return keysExpire(t, s.client, Config{}) }},
		{"expiry of a log forgotten", &slogScript, "expire(P)", "", func() error { return keysExpire(t, s.client, Config{Algorithm: sluice.SlidingLog}) }},
		{"TIME read twice", &bucketScript, "local time = call('TIME')", "local time = call('TIME') time = call('TIME')", func() error { return timeOnce(t, s, Config{}) }},
		{"refund in the place of a settlement", &bucketScript, "O1 = O1 + lent", "D = D + lent * U", func() error { return lentCounts(t, s.client) }},
		{"generation not raised", &bucketScript, "gen = max(gen + 1, floor(t / 100))", "", func() error { return refundHolds(t, s.client, Config{Limit: sluice.PerHour(10)}) }},
	} {
		t.Run(f.name, func(t *testing.T) {
			good := *f.script
			require.NoError(t, f.check(), "without the fault")
			require.Contains(t, good.text, f.old)
			*f.script = newScript(strings.ReplaceAll(good.text, f.old, f.new))
			defer func() { *f.script = good }()
			err := f.check()
			require.Error(t, err, "with the fault")
			t.Log(err)
		})
	}
}

// lentCounts demands of units on lease that they do not drain.
func lentCounts(tb testing.TB, client redis.UniversalClient) error {
	l, _, now := pair(tb, client, Config{Limit: sluice.PerSecond(100)})
	r := l.request(l.plan.Load(), "a")
	r.k, r.lend, r.share, r.epoch = 1, 50, 1, 10_000
	if answer, err := l.run(ctx, r); err != nil || answer.c != 50 {
		return fmt.Errorf("%+v, %w", answer, err)
	}
	now.Add(900_000)
	if got := take(tb, l, "a", 0).Remaining; got != 50 {
		return fmt.Errorf("of 100 units, 50 were lent 0.9 s before: %d remain", got)
	}
	return nil
}

// TestLent: the state has room for units that are on lease, and the script lets them count:
// they do not drain, and lapse as spent at the end of the epoch after the one they were
// lent in.
func TestLent(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		const epoch = 200_000 // us
		b, ok := bucketOn(1, 10, int64(time.Second), 100)
		require.True(t, ok)
		state := func(at, debt, o1, o2 int64) string {
			v := appendUint56(appendUint56(append([]byte{'b'}, 0, 0, 0, 0, 0, 0), at), debt*b.unit)
			v = appendUint32(appendUint56(v, b.unit), epoch/1000)
			return string(appendUint56(appendUint56(v, o1), o2))
		}
		const begin = startMicros - startMicros%epoch // of an epoch; a unit drains in half of one
		for _, c := range []struct {
			name            string
			at, o1, o2, now int64
			debt, lent      int64
		}{
			{"within the epoch", begin, 30, 20, begin + epoch - 1, 20*100_000 - (epoch - 1), 50},
			{"one later, the older lapses", begin, 30, 20, begin + epoch, 38 * 100_000, 30},
			{"one later, in the midst", begin + epoch/2, 30, 20, begin + epoch*3/2, 38 * 100_000, 30},
			{"two later, both lapse", begin, 30, 20, begin + 2*epoch, 66 * 100_000, 0},
			{"much later, they drain", begin, 30, 20, begin + 7*epoch, 56 * 100_000, 0},
			{"none older", begin, 30, 0, begin + epoch, 18 * 100_000, 30},
		} {
			var now atomic.Int64
			l := frozen(newLimiter(t, s.client, Config{Limit: sluice.PerSecond(10).WithBurst(100)}), &now)
			r := l.request(l.plan.Load(), "a")
			require.NoError(t, s.client.Set(ctx, r.key, state(c.at, 20, c.o1, c.o2), 0).Err())
			now.Store(c.now)
			answer, err := l.run(ctx, r)
			require.NoError(t, err)
			require.Equal(t, view{c.now, c.debt, c.lent, 0}, answer.view, c.name)
			remaining := (100*100_000-c.debt)/100_000 - c.lent
			d := take(t, l, "a", 1)
			require.Equal(t, remaining-1, int64(d.Remaining), c.name)
			require.False(t, take(t, l, "a", int(remaining)).Allowed, c.name)
			require.True(t, take(t, l, "a", int(remaining)-1).Allowed, c.name)
			require.Equal(t, c.lent > 0, len(s.client.Get(ctx, r.key).Val()) == 46, c.name)
			require.GreaterOrEqual(t, s.client.PTTL(ctx, r.key).Val(), d.ResetAfter, c.name)
		}
	})
}

// TestSize: a value has at most 48 bytes, and a unit of a log 24 in memory.
func TestSize(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variants {
			c.Limit, c.Offset = sluice.PerHour(1000), 0
			l := newLimiter(t, s.client, c)
			take(t, l, "a", 1000)
			key := l.request(l.plan.Load(), "a").key
			if c.Algorithm != sluice.SlidingLog {
				require.LessOrEqual(t, s.client.StrLen(ctx, key).Val(), int64(48), variantName(c))
			} else {
				require.LessOrEqual(t, s.client.MemoryUsage(ctx, key, 0).Val(), int64(24*1000))
			}
		}
	})
}

// TestLog_Large fills the largest log, in one call and in another.
func TestLog_Large(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		l := newLimiter(t, s.client, Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerHour(maxLog)})
		require.Equal(t, 1, take(t, l, "a", maxLog-1).Remaining)
		require.Equal(t, 0, take(t, l, "a", 1).Remaining)
		require.False(t, take(t, l, "a", 1).Allowed)
		require.NoError(t, l.Refund(ctx, "a", 40_000))
		require.Equal(t, 0, take(t, l, "a", 40_000).Remaining)
		require.NoError(t, l.Reset(ctx, "a"))
		require.Zero(t, s.client.Exists(ctx, l.request(l.plan.Load(), "a").key).Val())
	})
}

// TestLog_SameMicrosecond: two units of one microsecond both count.
func TestLog_SameMicrosecond(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		var now atomic.Int64
		now.Store(startMicros)
		l := frozen(newLimiter(t, s.client, Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerHour(3)}), &now)
		for i := range 5 {
			require.Equal(t, i < 3, take(t, l, "a", 1).Allowed)
		}
	})
}
