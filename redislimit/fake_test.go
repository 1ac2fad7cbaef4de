package redislimit

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A fakeRedis answers calls of the bucket's script in the place of a client's connection,
// so that tiers run in a bubble of testing/synctest: in its time, thousands of calls take
// none. TestFake compares it with the script.
type fakeRedis struct {
	redis.Hook
	trip    func() time.Duration // of one way
	refunds bool                 // the fault: leases are charged when they are lent, and what is unused is given back
	before  func()               // is told of each call before it takes effect, and
	after   func(name string, b bucket, s *lentState)

	script func(name string, arg []byte, now int64) string // nil: the bucket's

	mu   sync.Mutex
	keys map[string]*lentState
	n    int // calls
}

// A lentState is a bucket with units on lease; see bucket.lua.
type lentState struct{ t, debt, epoch, o1, o2 int64 }

// client returns one that is no *redis.Client: of those, probes do without hooks.
func (f *fakeRedis) client() redis.UniversalClient {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // a name would be looked up
	c.AddHook(f)
	return struct{ redis.UniversalClient }{c}
}

func (f *fakeRedis) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { panic("there is no server") }
}

func (f *fakeRedis) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return f.answer(ctx, []redis.Cmder{cmd}) }
}

func (f *fakeRedis) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return f.answer(ctx, cmds) }
}

func (f *fakeRedis) answer(ctx context.Context, cmds []redis.Cmder) error {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < time.Second {
		panic("a tier gives its calls a second at least")
	}
	f.mu.Lock()
	there, back := f.trip(), f.trip()
	f.mu.Unlock()
	time.Sleep(there)
	f.mu.Lock()
	for _, cmd := range cmds {
		args := cmd.Args()
		f.n++
		script := f.call
		if f.script != nil {
			script = f.script
		}
		cmd.(command).SetVal(script(args[3].(string), args[4].(*argument).packed, time.Now().UnixMicro()))
	}
	f.mu.Unlock()
	time.Sleep(back)
	return nil
}

// call is the script.
func (f *fakeRedis) call(name string, arg []byte, now int64) string {
	next := func(bytes int) int64 {
		n := number(string(arg[:bytes]))
		arg = arg[bytes:]
		return n
	}
	op, k, n, at := next(1), next(4), next(7), next(7)
	next(4) // spare
	next(7) // block
	debt := next(7)
	b := bucket{unit: next(7), drain: next(7), full: next(7), step: next(4)}
	var l leasing
	if op >= opLeases {
		op -= opLeases
		l = leasing{lend: next(7), share: next(4), epoch: next(4), since: next(7), spent: next(7), unused: next(7)}
	}
	if at > 0 {
		now = at
	}
	s := f.keys[name]
	if s == nil {
		s = &lentState{}
		f.keys[name] = s
	}
	if f.before != nil {
		f.before()
	}
	admitted, lent := s.run(b, op, k, n, debt, l, now, f.refunds)
	if f.after != nil {
		f.after(name, b, s)
	}
	reply := appendUint56(appendUint56(appendUint32(appendUint56(nil, s.t), admitted), s.debt), s.o1+s.o2)
	return string(appendUint56(reply, lent))
}

func (s *lentState) run(b bucket, op, k, n, debt int64, l leasing, now int64, refunds bool) (admitted, lent int64) {
	s.advance(b, now)
	s.settle(b, l, refunds)
	free := func() int64 { return b.free(view{a: s.debt, b: s.o1 + s.o2}) }
	if op == opReset {
		s.debt = 0
		return 0, 0
	}
	s.debt += min(debt, free()) * b.unit
	if op == opRefund {
		s.debt = max(0, s.debt-n*b.unit)
		return 0, 0
	}
	if k > 0 {
		admitted = min(k, free()/n)
		s.debt += admitted * n * b.unit
	}
	if l.lend > 0 && admitted == k {
		lent = min(l.lend, free()/l.share)
		if refunds {
			s.debt += lent * b.unit
		} else if lent > 0 {
			if s.o1+s.o2 == 0 {
				s.epoch = l.epoch
			} else if l.epoch > s.epoch {
				s.epoch, s.o1, s.o2 = l.epoch, s.o1+s.o2, 0
			}
			s.o1 += lent
		}
	}
	return admitted, lent
}

// advance goes on to a time, from one end of an epoch to the next.
func (s *lentState) advance(b bucket, now int64) {
	drain := func(to int64) {
		s.debt, s.t = max(0, s.debt-(to-s.t)/b.step*b.drain), to
	}
	if s.t == 0 {
		s.t = now - now%b.step
	}
	for range 2 {
		if s.o1+s.o2 == 0 {
			break
		}
		us := s.epoch * 1000
		edge := ceilDiv((s.t/us+1)*us, b.step) * b.step
		if edge > max(now, s.t) {
			break
		}
		drain(edge)
		s.debt += s.o2 * b.unit
		s.o1, s.o2 = 0, s.o1
	}
	if to := now - now%b.step; to > s.t {
		drain(to)
	}
}

func (s *lentState) settle(b bucket, l leasing, refunds bool) {
	if refunds {
		s.debt = max(0, s.debt-l.unused*b.unit)
		return
	}
	if s.o1+s.o2 == 0 || s.t-l.since >= l.epoch*1000 {
		return
	}
	out := &s.o1
	switch s.t/(s.epoch*1000) - l.since/(s.epoch*1000) {
	case 0:
	case 1:
		out = &s.o2
	default:
		return
	}
	spent := min(l.spent, *out)
	unused := min(l.unused, *out-spent)
	s.debt += spent * b.unit
	*out -= spent + unused
}

// TestFake compares with the script: calls, refunds and resets, with settlements that are in
// time, late, or of nothing, and epochs of several lengths.
func TestFake(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		rng := seeded.Rand(t)
		for range modelCalls(t) / 300 {
			cfg, p := randomConfig(t, rng, Config{})
			l := newLimiter(t, s.client, cfg)
			l.spare = 3_600_000
			b := p.shape.(bucket)
			burst := p.burst
			fake := &fakeRedis{keys: map[string]*lentState{}}
			type lease struct{ since, left int64 }
			leases := []lease{{}}
			now := int64(startMicros)
			calls := make([]scheduled, 0, 300)
			answers := make([]string, 0, 300)
			for range cap(calls) {
				now += rng.Int64N(3) * rng.Int64N(60_000)
				r := l.request(p, "a")
				r.k, r.n = rng.Int64N(4), 1+rng.Int64N(min(burst, 4))
				if rng.IntN(8) == 0 {
					r.op, r.k, r.n = byte(1+rng.IntN(2)), 0, 1+rng.Int64N(burst)
				} else if r.k > 0 {
					r.lend, r.share = rng.Int64N(burst+1), 1+rng.Int64N(64)
				}
				if rng.IntN(8) == 0 {
					r.debt = rng.Int64N(min(burst, 10))
				}
				of := &leases[rng.IntN(len(leases))]
				if len(leases) > 3 && rng.IntN(3) > 0 {
					of = &leases[len(leases)-1-rng.IntN(3)]
				}
				r.since, r.spent = of.since, rng.Int64N(of.left+1)
				r.unused = rng.Int64N(of.left - r.spent + 1)
				of.left -= r.spent + r.unused
				if rng.IntN(20) == 0 { // a Redis that has lost the lease takes nothing of others'
					r.unused += rng.Int64N(burst)
				}
				r.epoch = []int64{20, 50, 100, 100, 100, 100}[rng.IntN(6)]
				calls = append(calls, scheduled{request: r, now: now})
				answers = append(answers, fake.call("a", r.arguments(now, 0, ""), now))
				if lent := number(answers[len(answers)-1][25:32]); lent > 0 {
					leases = append(leases, lease{number(answers[len(answers)-1][:7]), lent})
				}
				state := fake.keys["a"]
				require.LessOrEqual(t, state.debt+(state.o1+state.o2)*b.unit, b.full)
			}
			l.runAll(ctx, calls)
			for i := range calls {
				require.NoError(t, calls[i].err)
				got := &calls[i].reply
				want := reply{view: view{number(answers[i][:7]), number(answers[i][11:18]), number(answers[i][18:25]), number(answers[i][25:32])}, admitted: number(answers[i][7:11])}
				require.Equal(t, want, reply{view: got.view, admitted: got.admitted}, "call %d of %v: %+v", i, cfg.Limit, calls[i].request)
			}
		}
	})
}
