package sluice

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A pass is a call that has been admitted.
type pass struct {
	call int
	at   time.Duration // since the begin
	cost int
}

// passes are written by concurrent calls.
type passes struct {
	begin time.Time
	mu    sync.Mutex
	all   []pass
}

func (p *passes) add(call, cost int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, pass{call, time.Since(p.begin), cost})
}

// sort puts the passes into the order of the calls, since calls that pass at one instant are noted in any order. It reports
// whether they have passed in that order.
func (p *passes) sort() (inOrder bool) {
	slices.SortFunc(p.all, func(a, b pass) int { return a.call - b.call })
	return slices.IsSortedFunc(p.all, func(a, b pass) int { return cmp.Compare(a.at, b.at) })
}

// requireUsed demands that so many percent of the units that the limiter could admit in a span from the begin have passed.
func (p *passes) requireUsed(t *testing.T, l *Limiter, span time.Duration, percent int) {
	t.Helper()
	passed := 0
	for _, pass := range p.all {
		if pass.at <= span {
			passed += pass.cost
		}
	}
	c := l.Config()
	possible := int(int64(c.Limit.Rate) * int64(span) / int64(c.Limit.Period))
	if c.Algorithm != LeakyBucket {
		possible += c.Limit.Burst
	}
	require.GreaterOrEqual(t, passed, possible*percent/100)
}

// requireWithin demands that no closed span has more units than the limiter's worst case.
func (p *passes) requireWithin(t *testing.T, l *Limiter) {
	t.Helper()
	for i, from := range p.all {
		sum := 0
		for _, to := range p.all[i:] {
			sum += to.cost
			d := to.at - from.at
			if sum > l.WorstCase(d) {
				require.LessOrEqual(t, sum, l.WorstCase(d), "in %v from %v", d, from.at)
			}
		}
	}
}

// overload offers a call 30 times a second until the end, of the given costs in turn. Each caller has no deadline, and
// gives up after its patience.
func overload(p *passes, end, patience time.Duration, costs []int, wait func(ctx context.Context, cost int) error) {
	for i := 0; time.Since(p.begin) < end; i++ {
		go func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer time.AfterFunc(patience, cancel).Stop()
			if cost := costs[i%len(costs)]; wait(ctx, cost) == nil {
				p.add(i, cost)
			}
		}()
		time.Sleep(sec / 30)
	}
	time.Sleep(patience)
	synctest.Wait()
}

// TestWait_UsesItsCapacity: at three times the load, all turns go to callers who still wait, in order of arrival. When the
// turns of those who gave up stayed unused, 38 of 636 units passed in the first row.
func TestWait_UsesItsCapacity(t *testing.T) {
	const end = 63 * sec
	for _, costs := range [][]int{{1}, {1, 3, 1, 5, 2}} {
		for _, a := range bucketAlgorithms {
			for _, patience := range []time.Duration{sec / 2, 2 * sec, 7 * sec} {
				for _, call := range []string{"Wait", "WaitAll", "two limits", "two keys"} {
					t.Run(fmt.Sprintf("%v/%v/%v/%s", costs, a, patience, call), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							limit := PerSecond(10).WithBurst(6)
							if a == LeakyBucket {
								limit.Burst = 150 // those who wait
							}
							l := mustNew(t, Config{Algorithm: a, Limit: limit, Stats: true})
							other := mustNew(t, Config{Limit: PerSecond(100).WithBurst(7)})
							k := l.Key("k")
							p := &passes{begin: time.Now()}
							overload(p, end, patience, costs, func(ctx context.Context, cost int) error {
								switch call {
								case "Wait":
									return k.Wait(ctx, cost)
								case "WaitAll":
									return waitAll(ctx, Charge{k, cost})
								case "two keys":
									return waitAll(ctx, Charge{k, cost}, Charge{l.Key("other"), 1})
								}
								return waitAll(ctx, Charge{k, cost}, Charge{other.Key("k"), 2 * min(cost, 3)})
							})
							p.requireUsed(t, l, end, 95)
							require.True(t, p.sort(), "in order of arrival")
							if a != LeakyBucket {
								p.requireWithin(t, l)
							}
							require.Zero(t, l.Stats().Waiting)
							time.Sleep(time.Hour)
							l.Sweep()
							require.Zero(t, openReservations(l))
						})
					})
				}
			}
		}
	}
}

// A lineModel is who waits for one key, by the definition: the first one passes as soon as its call would be admitted, and
// nobody passes it.
type lineModel struct {
	unit, burst, tat, now int64 // ns
	queue                 bool
	waiting               []pass
	passed                []pass
}

func (m *lineModel) advance(to int64) {
	for len(m.waiting) > 0 {
		c := m.waiting[0]
		at := m.tat
		if !m.queue {
			at += int64(c.cost)*m.unit - m.burst
		}
		if at = max(at, m.now); at > to {
			break
		}
		m.tat = max(m.tat, at) + int64(c.cost)*m.unit
		m.passed = append(m.passed, pass{c.call, time.Duration(at), c.cost})
		m.waiting, m.now = m.waiting[1:], at
	}
	m.now = to
}

// wait lets a call wait, unless the queue is full.
func (m *lineModel) wait(call, cost int) bool {
	owed := max(m.tat, m.now) - m.now
	for _, c := range m.waiting {
		owed += int64(c.cost) * m.unit
	}
	if m.queue && owed+int64(cost)*m.unit > m.burst {
		return false
	}
	m.waiting = append(m.waiting, pass{call: call, cost: cost})
	m.advance(m.now)
	return true
}

func (m *lineModel) cancel(call int) {
	m.waiting = slices.DeleteFunc(m.waiting, func(c pass) bool { return c.call == call })
	m.advance(m.now)
}

// allow is a call that does not wait: while others do, it is denied.
func (m *lineModel) allow(cost int) bool {
	if len(m.waiting) > 0 || max(m.tat, m.now)+int64(cost)*m.unit-m.now > m.burst {
		return false
	}
	m.tat = max(m.tat, m.now) + int64(cost)*m.unit
	return true
}

// TestModel_WaitMovesUp: every call passes at the nanosecond at which the model lets it pass, whoever gives up, by Wait
// and by WaitAll.
func TestModel_WaitMovesUp(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Ops() / 20 {
		synctest.Test(t, func(t *testing.T) { waitAtRandom(t, rng) })
	}
}

func waitAtRandom(t *testing.T, rng *rand.Rand) {
	a, burst := bucketAlgorithms[rng.IntN(len(bucketAlgorithms))], 1+rng.IntN(8)
	l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(10).WithBurst(burst)})
	m := &lineModel{unit: int64(sec / 10), burst: int64(burst) * int64(sec/10), queue: a == LeakyBucket}
	k, p := l.Key("k"), &passes{begin: time.Now()}
	cancels := map[int]context.CancelFunc{}
	for i := range 60 {
		cost := 1 + rng.IntN(1+rng.IntN(burst))
		switch rng.IntN(8) {
		case 0, 1, 2:
			ctx, cancel := context.WithCancel(t.Context())
			cancels[i] = cancel
			wait, all := m.wait(i, cost), rng.IntN(2) == 0
			go func() {
				var err error
				if all {
					err = waitAll(ctx, Charge{k, cost})
				} else {
					err = k.Wait(ctx, cost)
				}
				switch {
				case err == nil:
					p.add(i, cost)
				case !wait:
					assert.ErrorIs(t, err, ErrQueueFull)
				default:
					assert.ErrorIs(t, err, context.Canceled)
				}
			}()
		case 3, 4:
			if n := len(m.waiting); n > 0 {
				call := m.waiting[rng.IntN(n)].call
				cancels[call]()
				m.cancel(call)
			}
		case 5:
			if !m.queue { // which admits while others wait
				require.Equal(t, m.allow(cost), k.AllowN(cost))
			}
		default:
			time.Sleep(time.Duration(rng.Int64N(int64(4*sec/10)))*2 + 1)
			m.advance(int64(time.Since(p.begin)))
		}
		synctest.Wait()
	}
	time.Sleep(time.Minute)
	m.advance(int64(time.Since(p.begin)))
	synctest.Wait()
	p.sort()
	require.Equal(t, m.passed, p.all, "%v, burst %d", a, burst)
	for _, cancel := range cancels {
		cancel()
	}
	require.Zero(t, openReservations(l))
	require.Equal(t, burst, k.Peek(0).Remaining)
}

// TestWait_MovesUp when units before it come back in another way: by a settlement, a refund, or a turn of another kind.
func TestWait_MovesUp(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for _, c := range []struct {
			name string
			turn int // reserved before
			give func(k Key, taken, turn *Reservation)
			want time.Duration
		}{
			{"nothing", 2, func(Key, *Reservation, *Reservation) {}, 4 * sec},
			{"a settlement", 0, func(_ Key, taken, _ *Reservation) { taken.Settle(1) }, sec},
			{"a settlement before a turn that stays", 2, func(_ Key, taken, _ *Reservation) { taken.Settle(1) }, 4 * sec},
			{"a turn to come", 2, func(_ Key, _, turn *Reservation) { turn.Cancel() }, 2 * sec},
			{"a refund", 0, func(k Key, _, _ *Reservation) { k.Refund(1) }, sec},
			{"all", 2, func(_ Key, taken, turn *Reservation) { turn.Cancel(); taken.Cancel() }, 0},
		} {
			synctest.Test(t, func(t *testing.T) {
				limit := PerSecond(1).WithBurst(2)
				if a == LeakyBucket {
					limit.Burst = 20
				}
				l := mustNew(t, Config{Algorithm: a, Limit: limit})
				k, begin := l.Key("k"), time.Now()
				taken := mustTake(t, k, 2)
				turn, err := k.Reserve(c.turn, Never)
				require.NoError(t, err)
				var passed time.Duration
				done := goDo(1, func(int) {
					assert.NoError(t, k.Wait(t.Context(), 2))
					passed = time.Since(begin)
				})
				synctest.Wait()
				c.give(k, taken, turn)
				done()
				require.Equal(t, c.want, passed, "%v, %s", a, c.name)
			})
		}
	}
}

// TestWaitAll_TellsTheNextOne when its turn has begun, though its units are settled later, and not before a turn that
// it only looks at.
func TestWaitAll_TellsTheNextOne(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			limit := PerSecond(1).WithBurst(1)
			if a == LeakyBucket {
				limit.Burst = 20
			}
			l := mustNew(t, Config{Algorithm: a, Limit: limit})
			k, looked := l.Key("k"), l.Key("looked at")
			require.True(t, k.Allow() && looked.Allow())
			_, err := looked.Reserve(1, Never) // until 2 s
			require.NoError(t, err)
			begin := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			passed := make([]time.Duration, 4)
			wait := func(i int, ctx context.Context, charges ...Charge) {
				go func() {
					if _, err := WaitAll(ctx, charges...); err == nil {
						passed[i] = time.Since(begin)
					}
				}()
				synctest.Wait()
			}
			wait(0, t.Context(), Charge{k, 1})
			wait(1, ctx, Charge{k, 1})
			wait(2, t.Context(), Charge{k, 1}, Charge{looked, 0})
			wait(3, t.Context(), Charge{k, 1})
			cancel()
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, []time.Duration{sec, 0, 3 * sec, 4 * sec}, passed, "%v", a)

			require.True(t, k.Allow())
			begin = time.Now()
			ctx, cancel = context.WithCancel(t.Context())
			wait(0, t.Context(), Charge{k, 1})
			wait(1, ctx, Charge{k, 1})
			wait(2, t.Context(), Charge{k, 1})
			cancel()
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, []time.Duration{sec, 2 * sec}, []time.Duration{passed[0], passed[2]}, "%v", a)
		})
	}
}

// TestWait_MovesUpByAManualClock, whose sleepers are woken, and leave nothing.
func TestWait_MovesUpByAManualClock(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			limit, spent := PerSecond(1).WithBurst(3), 3
			if a == LeakyBucket {
				limit, spent = PerSecond(1).WithBurst(9), 1
			}
			l, clock := newFrozen(t, Config{Algorithm: a, Limit: limit})
			require.True(t, l.AllowN("k", spent))
			ctx, cancel := context.WithCancel(t.Context())
			go l.Wait(ctx, "k", 2)
			synctest.Wait()
			var passed atomic.Bool
			done := goDo(1, func(int) {
				assert.NoError(t, l.Wait(t.Context(), "k", 1))
				passed.Store(true)
			})
			synctest.Wait()
			require.Len(t, clock.sleepers, 2)
			cancel()
			synctest.Wait()
			require.Len(t, clock.sleepers, 1)
			clock.Advance(sec - 1)
			synctest.Wait()
			require.False(t, passed.Load())
			clock.Advance(1)
			done()
			require.True(t, passed.Load())
			require.Empty(t, clock.sleepers)
			require.Zero(t, openReservations(l))
		})
	}
}

// TestSettle_OfACallThatHasGone by a clock that goes back after that: it is no longer the first that waits.
func TestSettle_OfACallThatHasGone(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(1)})
	k := l.Key("k")
	require.True(t, k.Allow())
	var all []*Reservation
	for range 3 {
		r := &Reservation{lim: l, id: k.id, cost: 1}
		r.node.Wake = make(chan struct{}, 1)
		require.NoError(t, k.tryReserve(r, l.now(), Never))
		all = append(all, r)
	}
	all[1].Cancel()
	require.Empty(t, all[2].node.Wake)
	all[0].Settle(1)
	require.Len(t, all[2].node.Wake, 1)
}

// TestConcurrent_WaitersLeave in any order, some for two keys, while units are given back: no unit is lost, and none is
// given twice.
func TestConcurrent_WaitersLeave(t *testing.T) {
	for _, a := range bucketAlgorithms {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, Config{Algorithm: a, Limit: PerSecond(200).WithBurst(60), Shards: 1})
			one, two := l.Key("one"), l.Key("two")
			p := &passes{begin: time.Now()}
			goDo(8, func(g int) {
				for i := range 60 {
					ctx, cancel := context.WithCancel(t.Context())
					stop := time.AfterFunc(time.Duration((i*7+g*3)%40)*time.Millisecond, cancel)
					cost := 3 + i%5
					charges := []Charge{{one, cost}}
					switch g % 4 {
					case 0:
						charges = []Charge{{one, cost}, {two, 1 + i%3}}
					case 2:
						charges = []Charge{{two, 1 + i%3}, {one, cost - 1}, {one, 1}}
					}
					all, err := WaitAll(ctx, charges...)
					if err == nil {
						for j, r := range all {
							assert.Zero(t, r.Delay())
							if charges[j].Key == one {
								p.add(i, charges[j].Cost/2)
								r.Settle(charges[j].Cost / 2)
							}
						}
					}
					stop.Stop()
					cancel()
				}
			})()
			p.requireUsed(t, l, time.Since(p.begin), 70) // a leaky bucket has 80 or more; 1 to 72, if nobody is told of units that come back
			require.Less(t, len(p.all), 400, "some have given up")
			slices.SortStableFunc(p.all, func(a, b pass) int { return cmp.Compare(a.at, b.at) })
			if a != LeakyBucket {
				p.requireWithin(t, l)
			}
			time.Sleep(time.Minute)
			l.Sweep()
			require.Zero(t, openReservations(l))
			require.Zero(t, l.Stats().Waiting)
		})
	}
}
