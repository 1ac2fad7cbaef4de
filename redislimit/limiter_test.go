package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

var ctx = context.Background()

func take(tb testing.TB, l *Limiter, key string, cost int) sluice.Decision {
	tb.Helper()
	d, err := l.Take(ctx, key, cost)
	require.NoError(tb, err)
	return d
}

// frozen makes l judge all calls at the time that at tells, in us.
func frozen(l *Limiter, at *atomic.Int64) *Limiter {
	l.clock, l.spare = at.Load, 3_600_000
	return l
}

const startMicros = 1_763_764_000_123_457

// TestLocal compares with the library itself, which reads its clock in nanoseconds: where
// an interval has whole microseconds the decisions are the same, with the waits of
// the sliding window rounded up to a microsecond.
func TestLocal(t *testing.T) { eachServer(t, local) }

func local(t *testing.T, s *server) {
	limits := []sluice.Limit{sluice.PerSecond(10), sluice.PerMinute(6), sluice.Per(5, 3*time.Second).WithBurst(7), sluice.PerDay(86_400).WithBurst(3)}
	for _, v := range variants {
		t.Run(variantName(v), func(t *testing.T) {
			rng := seeded.Rand(t)
			for _, limit := range limits {
				c := v
				c.Limit = limit
				if c.Algorithm >= sluice.SlidingWindow {
					c.Limit.Burst = 0
				}
				if c.Limit.Rate > 100 && c.Algorithm == sluice.SlidingLog {
					c.Limit = sluice.PerHour(36)
				}
				if c.Offset != 0 {
					c.Offset = time.Duration(rng.Int64N(int64(c.Limit.Period/time.Microsecond))) * time.Microsecond
				}
				clock := sluice.NewManualClock(time.UnixMicro(startMicros))
				local := sluice.Must(sluice.New(sluice.Config{Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset, Clock: clock}))
				var now atomic.Int64
				lim := frozen(newLimiter(t, s.client, c), &now)
				for range 100 {
					clock.Advance(time.Duration(rng.Int64N(int64(2*c.Limit.Period)/int64(c.Limit.Rate)/micro)) * time.Microsecond)
					now.Store(clock.Now() / micro)
					cost := []int{1, 1, 2, 0, 3, int(lim.plan.Load().burst)}[rng.IntN(6)]
					want := local.Take("a", cost)
					want.RetryAfter = duration(ceilDiv(int64(want.RetryAfter), micro))
					require.Equal(t, want, take(t, lim, "a", cost), "%v cost %d", c.Limit, cost)
				}
			}
		})
	}
}

// TestNumbers holds what the formats stand on: the ranges of limits that fit 2^53.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		limit                   sluice.Limit
		unit, drain, full, step int64
	}{
		{sluice.PerHour(1000), 3_600_000, 1, 3_600_000_000, 1},
		{sluice.PerDay(86_399), 86_400_000_000, 86_399, 7_464_873_600_000_000, 1},
		{sluice.Per(1_000_003, 30*24*time.Hour).WithBurst(1_000_000), 2_592_000_000, 1_000_003, 2_592_000_000_000_000, 1000},
		{sluice.PerSecond(1_000_000), 1, 1, 1_000_000, 1},
		{sluice.Per(3, 7*time.Second), 7_000_000, 3, 21_000_000, 1},
		{sluice.Per(1, time.Nanosecond), 1, 1000, 1, 1},
	} {
		p, err := newPlan(Config{Limit: c.limit}, nil)
		require.NoError(t, err, "%v", c.limit)
		assert.Equal(t, bucket{c.unit, c.drain, c.full, c.step}, p.shape, "%v", c.limit)
	}
	p, err := newPlan(Config{Algorithm: sluice.SlidingWindow, Limit: sluice.PerDay(1_000_000)}, nil)
	require.NoError(t, err)
	assert.Equal(t, int64(10), p.shape.(sliding).step, "10^6 * 8.64*10^10 us is more than 2^53")
}

// TestWorstCase compares with the oracle's bounds, in steps.
func TestWorstCase(t *testing.T) {
	for _, v := range variants {
		t.Run(variantName(v), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range 300 {
				c, p := randomConfig(t, rng, v)
				model, step := oracle.New(oracleConfig(c, p)), stepOf(p.shape)
				d := rng.Int64N(3 * int64(c.Limit.Period) / micro / step)
				want := model.WorstCase(d)
				if most := big.NewInt(math.MaxInt); want.Cmp(most) > 0 {
					want = most // of 32 bits
				}
				require.Equal(t, want.String(), fmt.Sprint(p.worstCase(time.Duration(d*step*micro))), "%v in %d steps of %d us", c.Limit, d, step)
				require.GreaterOrEqual(t, p.worstCase(time.Duration(d*step*micro+1)), p.worstCase(time.Duration(d*step*micro)))
			}
		})
	}
	p, err := newPlan(Config{Limit: sluice.PerSecond(1_000_000)}, nil)
	require.NoError(t, err)
	assert.Equal(t, math.MaxInt, (&plan{burst: math.MaxInt}).worstCase(1))
	assert.Equal(t, 0, p.worstCase(-1))
	assert.Equal(t, 1_000_001, p.worstCase(1), "two arrivals 1 ns apart can be 1 us apart in Redis")
}

// TestConstant: what depends on nothing does not need Redis.
func TestConstant(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for _, limit := range []sluice.Limit{sluice.Unlimited, sluice.DenyAll} {
		local := sluice.Must(sluice.New(sluice.Config{Limit: limit}))
		l := newLimiter(t, client, Config{Limit: limit})
		for _, cost := range []int{0, 1, -1, math.MaxInt} {
			assert.Equal(t, local.Take("a", cost), take(t, l, "a", cost), "%v cost %d", limit, cost)
		}
		assert.Equal(t, local.WorstCase(time.Second), l.WorstCase(time.Second))
		require.NoError(t, l.Refund(ctx, "a", 1))
	}
}

// TestSetLimit_DenyAllAndBack: a limiter under DenyAll, a kill switch, still resets keys, and a limit that
// comes back finds what was spent.
func TestSetLimit_DenyAllAndBack(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10)})
		take(t, l, "a", 7)
		take(t, l, "b", 7)
		require.NoError(t, l.SetLimit(sluice.DenyAll))
		require.False(t, take(t, l, "a", 1).Allowed)
		require.NoError(t, l.Reset(ctx, "b"))
		require.NoError(t, l.Reset(ctx, "seen by others"))
		mark := s.client.PTTL(ctx, l.request(l.plan.Load(), "seen by others").key).Val()
		require.Greater(t, mark, 59*time.Minute, "for as long as what they have seen, at most a burst, could be put back")
		require.NoError(t, l.SetLimit(sluice.PerHour(10)))
		require.Equal(t, sluice.PerHour(10), l.Limit())
		require.Equal(t, 2, take(t, l, "a", 1).Remaining)
		require.Equal(t, 9, take(t, l, "b", 1).Remaining)
	})
}

// TestSetLimit_Bad changes nothing.
func TestSetLimit_Bad(t *testing.T) {
	l := newLimiter(t, anyServer(t).client, Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerHour(10)})
	var bad *ConfigError
	require.ErrorAs(t, l.SetLimit(sluice.PerHour(65_537)), &bad)
	require.Equal(t, "Limit.Rate", bad.Field)
	require.Equal(t, sluice.PerHour(10), l.Limit())
}

// TestKeys: any string is a key, and no two share a budget.
func TestKeys(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10), Prefix: "p{}\x00"})
		keys := []string{
			"", "\x00", "{", "}", "{}", "{a}b", "\xff\xfe", ":", "#", "user:1", strings.Repeat("x", 128), strings.Repeat("x", 129),
			strings.Repeat("y", 1<<20), strings.Repeat("y", 1<<20) + "z", "\r\n", "日本",
		}
		long := name("", 'b', strings.Repeat("x", 129))
		keys = append(keys, long, strings.TrimPrefix(long, "~b#"), strings.TrimPrefix(long, "~b"))
		for i, key := range keys {
			d := take(t, l, key, 1+i%3)
			require.Equal(t, 10-(1+i%3), d.Remaining, "%.20q", key)
		}
		names, err := s.client.Keys(ctx, "p{}*").Result()
		require.NoError(t, err)
		require.Len(t, names, len(keys))
		for _, name := range names {
			require.LessOrEqual(t, len(name), 64+3+128)
		}
		require.NoError(t, s.client.Del(ctx, names...).Err())
	})
}

// TestKeys_OfOthers: no key of one limiter is a key of another.
func TestKeys_OfOthers(t *testing.T) {
	s := anyServer(t)
	short := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10), Prefix: "o"})
	for _, prefix := range []string{"o:", "o:b", "o:b:", "ob", "o#"} {
		long := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10), Prefix: prefix})
		take(t, long, "k", 10)
		for _, key := range []string{"k", "b:k", ":k", "b~b:k", "~b:k", ":b~b:k", "b:b:k", "#~b:k"} {
			require.Equal(t, 10, take(t, short, key, 0).Remaining, "%q of o, %q", key, prefix)
		}
	}
}

// took is the outcome of a call that pipelined has made.
type took struct {
	sluice.Decision
	err error
}

// pipelined takes units of keys in one pipeline to each server, as lanes ask.
func pipelined(l *Limiter, cost int, keys ...string) []took {
	batch, calls, out := make([]scheduled, len(keys)), make([]takeCall, len(keys)), make([]took, len(keys))
	for i, key := range keys {
		calls[i] = l.newCall(key, cost, true)
		batch[i] = scheduled{request: calls[i].request, now: l.clock(), at: i}
	}
	l.runAll(ctx, batch)
	for i := range batch {
		b := &batch[i]
		if out[b.at].err = b.err; b.err == nil {
			out[b.at].Decision = calls[b.at].decision(&b.reply)
		}
	}
	return out
}

// TestPipeline: of calls in one pipeline each has its own answer, or its own error, in their order, also of a server that has no script.
func TestPipeline(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		require.NoError(t, s.client.ScriptFlush(ctx).Err())
		l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10)})
		require.NoError(t, s.client.Set(ctx, l.request(l.plan.Load(), "b").key, "other", 0).Err())
		out := pipelined(l, 4, "a", "b", "a", "a")
		require.ErrorIs(t, out[1].err, ErrForeignValue)
		for i, want := range map[int]sluice.Decision{0: {Allowed: true, Remaining: 6}, 2: {Allowed: true, Remaining: 2}, 3: {Remaining: 2}} {
			require.NoError(t, out[i].err)
			require.Equal(t, want, sluice.Decision{Allowed: out[i].Allowed, Remaining: out[i].Remaining}, "call %d", i)
		}
	})
}

// TestForeign: a value that is none of ours is an error, and stays as it is.
func TestForeign(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, v := range variants {
			c := v
			c.Limit, c.Offset = sluice.PerHour(10), 0
			l := newLimiter(t, s.client, c)
			key := l.request(l.plan.Load(), "a").key
			for _, value := range []any{"", "x", "other", strings.Repeat("b", 28) + "?", 17, "BLOCKED BY ME!", textOf(t, c)} {
				require.NoError(t, s.client.Set(ctx, key, value, 0).Err())
				if value == "" && c.Algorithm != sluice.SlidingLog {
					continue // as good as nothing
				}
				demandForeign(t, l)
				require.Equal(t, fmt.Sprint(value), s.client.Get(ctx, key).Val())
			}
			require.NoError(t, s.client.Del(ctx, key).Err())
			require.NoError(t, s.client.HSet(ctx, key, "f", "v").Err())
			demandForeign(t, l)
			require.NoError(t, s.client.Del(ctx, key).Err())
			for _, list := range [][]string{
				{"x"}, {"untilx"}, {"until"}, {"until 5"}, {"job-1", "42"}, {"41", "job-2"}, {"42", "41"}, {"41", "until42"}, {"until41", "42"},
				{" 41"}, {"0x41"}, {"4e1"}, {"4.1"}, {"-41"}, {"nan"}, {"inf"}, {""}, {"9007199254740992"},
			} {
				for _, element := range list {
					require.NoError(t, s.client.RPush(ctx, key, element).Err())
				}
				demandForeign(t, l)
				require.Equal(t, list, s.client.LRange(ctx, key, 0, -1).Val())
				require.NoError(t, s.client.Del(ctx, key).Err())
			}
		}
	})
}

// textOf returns a printable text that has the first byte and the length of a state under a config.
func textOf(t *testing.T, c Config) string {
	s := anyServer(t)
	l := newLimiter(t, s.client, c)
	take(t, l, "a", 1)
	state, _ := s.client.Get(ctx, l.request(l.plan.Load(), "a").key).Result() // a log has none
	return (state + "B")[:1] + strings.Repeat(" ", max(len(state), blockSize)-1)
}

func demandForeign(t *testing.T, l *Limiter) {
	t.Helper()
	_, err := l.Take(ctx, "a", 1)
	require.ErrorIs(t, err, ErrForeignValue)
	_, err = l.Peek(ctx, "a", 1)
	require.ErrorIs(t, err, ErrForeignValue)
	require.ErrorIs(t, l.Refund(ctx, "a", 1), ErrForeignValue)
}

// TestNoScript: a server that has forgotten the script gets its text, once.
func TestNoScript(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, c := range variants {
			c.Limit, c.Offset = sluice.PerHour(10), 0
			l := newLimiter(t, s.client, c)
			for i := range 4 {
				require.NoError(t, s.client.ScriptFlush(ctx).Err())
				require.Equal(t, 9-i, take(t, l, "a", 1).Remaining)
			}
		}
	})
}

// TestConcurrent: exactly the burst is admitted, whoever asks.
func TestConcurrent(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, v := range variants {
			c := v
			c.Limit, c.Offset, c.Prefix = sluice.PerHour(100), 0, newPrefix()
			var now atomic.Int64
			now.Store(startMicros)
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				l := frozen(newLimiter(t, s.client, c), &now)
				wg.Go(func() {
					for i := range 40 {
						d, err := l.Take(ctx, "a", 1+i%3)
						if assert.NoError(t, err) && d.Allowed {
							admitted.Add(int64(1 + i%3))
						}
					}
				})
			}
			wg.Wait()
			require.Equal(t, int64(100), admitted.Load(), variantName(v))
		}
	})
}

// TestClock_Back: a clock that has gone back gives nothing away and locks nobody out.
func TestClock_Back(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, v := range variants {
			c := v
			c.Limit, c.Offset = sluice.PerMinute(10), 0
			var now atomic.Int64
			now.Store(startMicros - startMicros%60_000_000 + 1)
			l := frozen(newLimiter(t, s.client, c), &now)
			require.True(t, take(t, l, "a", 6).Allowed)
			now.Add(-3_600_000_000)
			require.Equal(t, 3, take(t, l, "a", 1).Remaining, variantName(v))
			require.False(t, take(t, l, "a", 4).Allowed, variantName(v))
			require.True(t, take(t, l, "a", 3).Allowed, variantName(v))
			now.Add(3_600_000_000 + 120_000_000)
			require.Equal(t, 9, take(t, l, "a", 1).Remaining, variantName(v))
		}
	})
}

// TestCallerClock never asks Redis for the time, and admits by the caller's.
func TestCallerClock(t *testing.T) {
	s := start(t, anyServer(t).binary)
	defer s.kill()
	l := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10), TimeSource: CallerClock})
	require.Equal(t, 9, take(t, l, "a", 1).Remaining)
	require.NotContains(t, s.client.Info(ctx, "commandstats").Val(), "cmdstat_time")
}

// TestContext: a context that has ended charges nothing.
func TestContext(t *testing.T) {
	l := newLimiter(t, anyServer(t).client, Config{Limit: sluice.PerHour(10)})
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := l.Take(ended, "a", 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, l.Refund(ended, "a", 1), context.Canceled)
	require.ErrorIs(t, l.Refund(ended, "a", 0), context.Canceled)
	require.ErrorIs(t, l.Reset(ended, "a"), context.Canceled)
	require.Equal(t, 9, take(t, l, "a", 1).Remaining)
}

// TestBadConfig: each has an error that names the field.
func TestBadConfig(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	good := Config{Limit: sluice.PerHour(10), Prefix: "p"}
	with := func(f func(*Config)) Config {
		c := good
		f(&c)
		return c
	}
	for _, c := range []struct {
		cfg   Config
		field string
	}{
		{with(func(c *Config) { c.Prefix = "" }), "Prefix"},
		{with(func(c *Config) { c.Prefix = strings.Repeat("p", 65) }), "Prefix"},
		{with(func(c *Config) { c.Prefix = "a~b" }), "Prefix"},
		{with(func(c *Config) { c.Prefix = "rl{a" }), "Prefix"},
		{with(func(c *Config) { c.Prefix = "}rl{" }), "Prefix"},
		{with(func(c *Config) { c.TimeSource = 2 }), "TimeSource"},
		{with(func(c *Config) { c.Algorithm = 9 }), "Algorithm"},
		{with(func(c *Config) { c.Offset = 1 }), "Offset"},
		{with(func(c *Config) { c.BlockFor = -1 }), "BlockFor"},
		{with(func(c *Config) { c.Limit.Period = 0 }), "Limit.Period"},
		{with(func(c *Config) { c.Limit.Rate = -1 }), "Limit.Rate"},
		{with(func(c *Config) { c.Limit = sluice.Per(1_000_003, 365*24*time.Hour).WithBurst(300_000) }), "Limit"},
		{with(func(c *Config) { c.Algorithm, c.Limit = sluice.SlidingLog, sluice.PerHour(65_537) }), "Limit.Rate"},
		{with(func(c *Config) { c.Algorithm, c.Limit = sluice.FixedWindow, sluice.Per(1, 999) }), "Limit.Period"},
		{with(func(c *Config) { c.Algorithm, c.Limit = sluice.SlidingLog, sluice.Per(1, 150*365*24*time.Hour) }), "Limit.Period"},
		{with(func(c *Config) { c.Algorithm, c.Offset = sluice.FixedWindow, 999 }), "Offset"},
		{with(func(c *Config) {
			c.Algorithm, c.Limit = sluice.SlidingWindow, sluice.Per(1_000_000_000, 3650*24*time.Hour)
		}), "Limit"},
	} {
		_, err := New(client, c.cfg)
		var bad *ConfigError
		require.ErrorAs(t, err, &bad, c.field)
		assert.Equal(t, c.field, bad.Field, "%v", err)
	}
	_, err := New(nil, good)
	require.Error(t, err)
	_, err = New((*redis.Client)(nil), good)
	require.Error(t, err)
	require.Equal(t, "TimeSource(7)", TimeSource(7).String())
	require.Equal(t, "caller", CallerClock.String())
}

// TestReply: what a script cannot have answered is an error, not a Decision.
func TestReply(t *testing.T) {
	for _, value := range []any{nil, int64(1), "", "short", strings.Repeat("x", 200), []any{int64(1)}, true} {
		cmd := command{redis.NewCmd(ctx, "evalsha")}
		cmd.SetVal(value)
		_, err := parse(cmd, false)
		require.Error(t, err, "%v", value)
	}
	cmd := command{redis.NewCmd(ctx, "evalsha")}
	cmd.SetErr(errors.New("NOPERM this user has no permissions to run the 'evalsha' command"))
	_, err := parse(cmd, false)
	require.ErrorContains(t, err, "NOPERM")
}

// TestReply_OfAnotherScript: a reply that a proxy takes for another is an error, and is forgotten: sent with the next
// call, its state would be refused for as long as it is remembered.
func TestReply_OfAnotherScript(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		swap := &swapped{}
		client := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
		defer client.Close()
		client.AddHook(swap)
		for _, c := range variants {
			for _, other := range variants {
				c.Limit, c.Offset, other.Limit, other.Offset = sluice.PerHour(10), 0, sluice.PerHour(10), 0
				if other.Algorithm == sluice.SlidingLog {
					continue // its replies have no state
				}
				a, b := newLimiter(t, client, c), newLimiter(t, client, other)
				if a.plan.Load().shape.keeps(stateOf(t, b)) {
					continue
				}
				what := variantName(c) + ", " + variantName(other)
				take(t, b, "key", 1)
				swap.next = swap.last
				_, err := a.Take(ctx, "key", 1)
				require.ErrorContains(t, err, "another script's", what)
				require.Equal(t, 8, take(t, a, "key", 1).Remaining, what)
			}
		}
	})
}

// stateOf returns the state that Redis has of a key of l.
func stateOf(t *testing.T, l *Limiter) string {
	take(t, l, "other", 1)
	state, err := l.client.Get(ctx, l.request(l.plan.Load(), "other").key).Result()
	require.NoError(t, err)
	return state
}

// swapped is a hook that gives a command the reply next in the place of its own.
type swapped struct {
	redis.Hook
	last, next any
}

func (s *swapped) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *swapped) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if c, ok := cmd.(command); ok && err == nil {
			s.last = c.Val()
			if s.next != nil {
				c.SetVal(s.next)
				s.next = nil
			}
		}
		return err
	}
}

func (s *swapped) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestUnreachable: no Redis is an error.
func TestUnreachable(t *testing.T) {
	t.Parallel() // it mostly waits
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	l := newLimiter(t, client, Config{Limit: sluice.PerHour(10)})
	d, err := l.Take(ctx, "a", 1)
	require.Error(t, err)
	require.Equal(t, sluice.Decision{}, d)
	require.Error(t, pipelined(l, 1, "a", "b")[1].err)
}

// TestPipeline_Unwelcome: a client that gets no connection says why, in a pipeline as well.
func TestPipeline_Unwelcome(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: anyServer(t).addr, Username: "nobody", Password: "x"})
	defer client.Close()
	for _, r := range pipelined(newLimiter(t, client, Config{Limit: sluice.PerHour(10)}), 1, "a", "b") {
		require.ErrorContains(t, r.err, "WRONGPASS")
		require.True(t, notDone(r.err))
	}
}
