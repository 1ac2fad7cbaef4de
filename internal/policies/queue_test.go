package policies

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/metrics"
)

// request is one that tests judge.
type request struct {
	client string
	cost   int
}

type queuePolicy = Policy[*request, struct{}]

func byClient(r *request) (string, error) { return r.client, nil }

func byNothing(*request) (string, error) { return "", nil }

func costOf(r *request) int { return r.cost }

// desk judges requests by policies, with a queue.
type desk struct {
	t     *testing.T
	queue *Queue
	list  []queuePolicy
}

func newDesk(t *testing.T, terms QueueTerms, ps ...queuePolicy) *desk {
	t.Helper()
	_, reason := terms.Check()
	require.Empty(t, reason)
	q := NewQueue(terms)
	Order(ps)
	_, reason = PutInto(q, ps)
	require.Empty(t, reason)
	return &desk{t, q, ps}
}

// ask judges a request, and returns when that is done.
func (d *desk) ask(ctx context.Context, r *request) Decision {
	var j Judgement[*request, struct{}]
	return j.JudgeInTurn(ctx, j.Collect(d.list, r, nil), d.queue)
}

// fresh demands that nothing of a request that has waited is left.
func (d *desk) fresh() {
	d.t.Helper()
	assert.Zero(d.t, d.queue.waiting.Load())
	assert.Empty(d.t, d.queue.lines)
}

// waitsFor is ask for a request that has to wait. It returns once it does.
func (d *desk) waitsFor(ctx context.Context, r *request) <-chan Decision {
	d.t.Helper()
	before := d.queue.waiting.Load()
	done := make(chan Decision, 1)
	go func() { done <- d.ask(ctx, r) }()
	synctest.Wait()
	require.Empty(d.t, done)
	require.Equal(d.t, before+1, d.queue.waiting.Load())
	return done
}

func limiter(t *testing.T, c sluice.Config) *sluice.Limiter {
	t.Helper()
	l, err := sluice.New(c)
	require.NoError(t, err)
	return l
}

// An event is the end of a request.
type event struct {
	number int
	at     time.Time
	after  time.Duration // since the request came
	Decision
}

// inOrder demands that admitted requests, by number, have passed in order: those that pass at one instant can tell it in any order.
func inOrder(t *testing.T, es []event) {
	t.Helper()
	var last time.Time
	for _, e := range es {
		if e.Outcome == Admitted {
			require.False(t, e.at.Before(last), "request %d has overtaken another one", e.number)
			last = e.at
		}
	}
}

// The wait that a request is told is the one that it would have: under buckets and fixed windows to the nanosecond, under other
// algorithms at least. Nobody overtakes.
func TestQueue_TheWaitThatIsToldIsTheWait(t *testing.T) {
	for _, tt := range []struct {
		algorithm sluice.Algorithm
		limit     sluice.Limit
		exact     bool
	}{
		{sluice.GCRA, sluice.PerSecond(10).WithBurst(3), true},
		{sluice.GCRA, sluice.Per(3, time.Second).WithBurst(7), false}, // each wait is rounded up to the nanosecond
		{sluice.TokenBucket, sluice.PerSecond(10).WithBurst(3), true},
		{sluice.LeakyBucket, sluice.PerSecond(10).WithBurst(3), true},
		{sluice.TokenBucketInterval, sluice.PerSecond(5), true},
		{sluice.FixedWindow, sluice.PerSecond(5), true},
		{sluice.SlidingWindow, sluice.PerSecond(5), false},
		{sluice.SlidingLog, sluice.PerSecond(5), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			name := fmt.Sprint(tt.algorithm, " ", tt.limit)
			l := limiter(t, sluice.Config{Algorithm: tt.algorithm, Limit: tt.limit, Stats: true})
			d := newDesk(t, QueueTerms{100, 100, time.Hour}, queuePolicy{Name: "p", Limiter: l, Key: byClient, Cost: costOf})
			r := seeded.Rand(t)
			for d.ask(t.Context(), &request{"a", 1}).Waited == 0 && l.Key("a").Peek(1).Allowed {
			}
			events := make(chan event, 100)
			var told []time.Duration
			began := time.Now()
			for i := range 40 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
				req := &request{"a", 1}
				if tt.algorithm != sluice.SlidingLog && tt.algorithm != sluice.SlidingWindow && tt.algorithm != sluice.FixedWindow && tt.algorithm != sluice.TokenBucketInterval {
					req.cost = 1 + r.IntN(3)
				}
				var j Judgement[*request, struct{}]
				j.Collect(d.list, req, nil)
				s := d.queue.newStand(j.claims())
				d.queue.mu.Lock()
				_, wait := s.longest()
				d.queue.mu.Unlock()
				told = append(told, wait)
				came := time.Now()
				go func() {
					decision := d.ask(t.Context(), req)
					events <- event{i, time.Now(), time.Since(came), decision}
				}()
				synctest.Wait()
			}
			all := make([]event, len(told))
			for range told {
				e := <-events
				all[e.number] = e
			}
			inOrder(t, all)
			for n, e := range all {
				require.Equal(t, Admitted, e.Outcome)
				require.Equal(t, e.after, e.Waited)
				if tt.exact {
					require.Equal(t, told[n], e.after, "%s: request %d", name, n)
				} else {
					require.GreaterOrEqual(t, e.after+time.Duration(n), told[n], "%s: request %d", name, n)
				}
			}
			require.LessOrEqual(t, int(l.Stats().Admitted), 1_000)
			require.Zero(t, l.Stats().Denied, name)
			require.Positive(t, time.Since(began))
			d.fresh()
		})
	}
}

// Whoever goes gives its turn to those behind it: while somebody waits, no unit is lost.
func TestQueue_WhoGoesDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Limit: sluice.PerSecond(10).WithBurst(1), Stats: true})
		d := newDesk(t, QueueTerms{1000, 1000, time.Minute}, queuePolicy{Name: "p", Limiter: l, Key: byClient})
		r := seeded.Rand(t)
		require.Zero(t, d.ask(t.Context(), &request{client: "a"}).Waited)
		passed, gone := 0, 0
		outcomes := make(chan Outcome, 1000)
		for range 600 { // three times the load, and most go
			ctx, cancel := context.WithCancel(t.Context())
			if r.IntN(5) > 0 {
				time.AfterFunc(time.Duration(r.IntN(2000))*time.Millisecond, cancel)
			}
			go func() {
				defer cancel()
				outcomes <- d.ask(ctx, &request{client: "a"}).Outcome
			}()
			time.Sleep(33 * time.Millisecond)
		}
		for range 600 {
			switch <-outcomes {
			case Admitted:
				passed++
			case Gone:
				gone++
			}
		}
		assert.Equal(t, 600, passed+gone)
		assert.Greater(t, gone, 200)
		assert.GreaterOrEqual(t, passed, 198, "the limit admits 10 a second for 20 s")
		assert.EqualValues(t, passed+1, l.Stats().Admitted)
		assert.Zero(t, l.Stats().Denied, "who goes is neither")
		d.fresh()
	})
}

// A client that waits for a limit of its own keeps nobody from the limit for all, however many of its requests do.
func TestQueue_OwnWaitsKeepNobodyElseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := sluice.NewManualClock(time.Unix(1_790_000_123, 0))
		own := limiter(t, sluice.Config{Limit: sluice.Per(1, time.Minute), Clock: clock})
		all := limiter(t, sluice.Config{Limit: sluice.PerSecond(1).WithBurst(2), Clock: clock})
		for _, allFirst := range []bool{false, true} {
			own.Key("mallory").Reset()
			own.Key("ann").Reset()
			own.Key("bob").Reset()
			all.Key("").Reset()
			ps := []queuePolicy{{Name: "own", Limiter: own, Key: byClient}, {Name: "all", Limiter: all, Key: byNothing, MaxPerKey: 20}}
			if allFirst {
				ps[0], ps[1] = ps[1], ps[0]
			}
			d := newDesk(t, QueueTerms{20, 3, time.Hour}, ps...)
			ctx, cancel := context.WithCancel(t.Context())
			require.Equal(t, Admitted, d.ask(ctx, &request{client: "mallory"}).Outcome)
			for range 3 {
				d.waitsFor(ctx, &request{client: "mallory"})
			}
			turned := d.ask(ctx, &request{client: "mallory"})
			require.Equal(t, Denied, turned.Outcome, "it has three places")
			require.Equal(t, []string{"own"}, turned.Violated)
			require.Equal(t, 4*time.Minute, turned.RetryAfter)
			require.Equal(t, Admitted, d.ask(ctx, &request{client: "ann"}).Outcome)
			bob := d.waitsFor(ctx, &request{client: "bob"})
			clock.Advance(time.Second)
			synctest.Wait()
			require.Len(t, bob, 1, "only the limit for all was in the way")
			cancel()
			synctest.Wait()
			d.fresh()
		}
	})
}

// Whoever has all places that there are for one key takes no place of others, and whoever has all places keeps nobody out that is
// within the limits.
func TestQueue_PlacesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Limit: sluice.PerHour(1), Clock: sluice.NewManualClock(time.Unix(1_790_000_123, 0)), Stats: true})
		d := newDesk(t, QueueTerms{5, 2, time.Hour}, queuePolicy{Name: "p", Limiter: l, Key: byClient})
		ctx, cancel := context.WithCancel(t.Context())
		for _, c := range []string{"a", "b", "c", "late"} {
			require.Equal(t, Admitted, d.ask(ctx, &request{client: c}).Outcome)
		}
		l.Key("a").Refund(1)
		l.Key("a").Debit(1)
		for _, c := range []string{"a", "b"} {
			for i := range 3 {
				req := &request{client: c}
				if i == 0 {
					d.waitsFor(ctx, req)
					continue
				}
				require.Equal(t, Denied, d.ask(ctx, req).Outcome, "the second would wait for longer than an hour")
			}
		}
		cancel()
		synctest.Wait()
		d.fresh()
		assert.EqualValues(t, 4, l.Stats().Denied, "who is turned away is denied once")
		assert.EqualValues(t, 4, l.Stats().Admitted)

		l = limiter(t, sluice.Config{Limit: sluice.PerMinute(1), Clock: sluice.NewManualClock(time.Unix(1_790_000_123, 0))})
		d = newDesk(t, QueueTerms{5, 2, time.Hour}, queuePolicy{Name: "p", Limiter: l, Key: byClient})
		ctx, cancel = context.WithCancel(t.Context())
		for _, c := range []string{"a", "b", "c"} {
			require.Equal(t, Admitted, d.ask(ctx, &request{client: c}).Outcome)
		}
		for _, c := range []string{"a", "a", "b", "b", "c"} {
			d.waitsFor(ctx, &request{client: c})
		}
		for _, c := range []string{"a", "b", "c"} {
			require.Equal(t, Denied, d.ask(ctx, &request{client: c}).Outcome)
		}
		require.Equal(t, Admitted, d.ask(ctx, &request{client: "within the limit"}).Outcome)
		require.EqualValues(t, 5, d.queue.waiting.Load())
		cancel()
		synctest.Wait()
		d.fresh()
	})
}

// No request waits for longer than MaxWait, or the deadline of its context, and none begins a wait that is known to be longer.
func TestQueue_MaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour), Stats: true})
		d := newDesk(t, QueueTerms{5, 5, 10 * time.Second}, queuePolicy{Name: "p", Limiter: l, Key: byClient})
		permit, err := l.Acquire("a", 1)
		require.NoError(t, err)
		came := time.Now()
		turned := d.ask(t.Context(), &request{client: "a"})
		assert.Equal(t, Denied, turned.Outcome)
		assert.Equal(t, 10*time.Second, time.Since(came))
		assert.Equal(t, 10*time.Second, turned.Waited)
		assert.Equal(t, time.Second, turned.RetryAfter, "nobody knows when a request ends")
		assert.Equal(t, []string{"p"}, turned.Violated)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		came = time.Now()
		assert.Equal(t, Denied, d.ask(ctx, &request{client: "a"}).Outcome, "its deadline is no client that goes")
		assert.Equal(t, time.Second, time.Since(came))
		require.NoError(t, permit.Release())
		assert.EqualValues(t, 2, l.Stats().Denied)
		d.fresh()

		l = limiter(t, sluice.Config{Limit: sluice.Per(1, 4*time.Second)})
		d = newDesk(t, QueueTerms{5, 5, 10 * time.Second}, queuePolicy{Name: "p", Limiter: l, Key: byClient, Cost: costOf})
		require.Equal(t, Admitted, d.ask(t.Context(), &request{"a", 1}).Outcome)
		never := d.ask(t.Context(), &request{"a", 2})
		assert.Equal(t, Denied, never.Outcome)
		assert.Equal(t, sluice.Never, never.RetryAfter, "above the burst")
		assert.Equal(t, sluice.Never, d.ask(t.Context(), &request{"a", -1}).RetryAfter)
		first, second := d.waitsFor(t.Context(), &request{"a", 1}), d.waitsFor(t.Context(), &request{"a", 1})
		came = time.Now()
		third := d.ask(t.Context(), &request{"a", 1})
		assert.Equal(t, 12*time.Second, third.RetryAfter)
		assert.Zero(t, third.Waited)
		assert.Zero(t, time.Since(came))
		assert.Equal(t, 4*time.Second, (<-first).Waited)
		assert.Equal(t, 8*time.Second, (<-second).Waited)
		d.fresh()
	})
}

// A request waits for others in flight although nobody knows how long, in order of arrival.
func TestQueue_InFlightWaitsForAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
		d := newDesk(t, QueueTerms{5, 5, 300 * time.Millisecond}, queuePolicy{Name: "p", Limiter: l, Key: byClient})
		permit, err := l.Acquire("a", 1)
		require.NoError(t, err)
		first, second := d.waitsFor(t.Context(), &request{client: "a"}), d.waitsFor(t.Context(), &request{client: "a"})
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, permit.Release())
		got := <-first
		assert.Equal(t, Admitted, got.Outcome)
		assert.Equal(t, 200*time.Millisecond, got.Waited)
		got = <-second // since nothing gives the unit back here
		assert.Equal(t, Denied, got.Outcome)
		assert.Equal(t, 300*time.Millisecond, got.Waited)
		d.fresh()
	})
}

// What happens to a limit while requests wait for it: they end all the same.
func TestQueue_LimitsThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Limit: sluice.PerMinute(1), MaxKeys: 1, Shards: 1, Overflow: sluice.OverflowDenyNew, Stats: true})
		d := newDesk(t, QueueTerms{5, 5, 10 * time.Minute}, queuePolicy{Name: "p", Limiter: l, Key: byClient})
		require.Equal(t, Admitted, d.ask(t.Context(), &request{client: "a"}).Outcome)
		assert.Equal(t, Denied, d.ask(t.Context(), &request{client: "new"}).Outcome, "there is no room for the key, of which a look knows nothing")
		assert.EqualValues(t, 1, l.Stats().Denied)
		first, second := d.waitsFor(t.Context(), &request{client: "a"}), d.waitsFor(t.Context(), &request{client: "a"})
		require.NoError(t, l.SetLimit(sluice.DenyAll))
		assert.Equal(t, Denied, (<-first).Outcome)
		assert.Equal(t, Denied, (<-second).Outcome)
		d.fresh()

		require.NoError(t, l.SetLimit(sluice.PerMinute(1)))
		l.Key("a").Reset()
		require.Equal(t, Admitted, d.ask(t.Context(), &request{client: "a"}).Outcome)
		first = d.waitsFor(t.Context(), &request{client: "a"})
		require.True(t, l.Key("a").Block(5*time.Minute))
		assert.Equal(t, 5*time.Minute, (<-first).Waited)
		d.fresh()
	})
}

// slowRemote admits when it is told to.
type slowRemote struct {
	asked chan struct{}
	goes  chan struct{}
}

func (r *slowRemote) Take(context.Context, string, int) (sluice.Decision, error) {
	r.asked <- struct{}{}
	<-r.goes
	return sluice.Decision{Allowed: true}, nil
}

func (r *slowRemote) Refund(context.Context, string, int) error { return nil }

// A request that asks a Remote keeps nobody back: it has left the line.
func TestQueue_ASlowRemoteKeepsNobodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Limit: sluice.Per(1, time.Second)})
		far := &slowRemote{make(chan struct{}, 3), make(chan struct{})}
		d := newDesk(t, QueueTerms{5, 5, time.Minute}, queuePolicy{Name: "near", Limiter: l, Key: byClient}, queuePolicy{Name: "far", Remote: far, Key: byClient})
		done := make(chan Decision, 3)
		for range 3 {
			go func() { done <- d.ask(t.Context(), &request{client: "a"}) }()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, far.asked, 3, "each after a second")
		d.fresh()
		close(far.goes)
		for range 3 {
			require.Equal(t, Admitted, (<-done).Outcome)
		}
	})
}

// Two policies that share a limiter and a key have one line, and their costs add up.
func TestQueue_OneKeyOfTwoPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, sluice.Config{Limit: sluice.PerMinute(2)})
		d := newDesk(t, QueueTerms{5, 5, 10 * time.Minute}, queuePolicy{Name: "p", Limiter: l, Key: byClient}, queuePolicy{Name: "q", Limiter: l, Key: byClient})
		require.Equal(t, Admitted, d.ask(t.Context(), &request{client: "a"}).Outcome)
		time.Sleep(45 * time.Second)
		came := time.Now()
		got := d.ask(t.Context(), &request{client: "a"})
		assert.Equal(t, Admitted, got.Outcome)
		assert.Equal(t, 15*time.Second, time.Since(came))
		d.fresh()
	})
}

// Many requests of few clients, under limits for each and for all, that come, wait, pass and go at random: places are never more than
// there are, those of one client pass in the order in which they came, no limit is exceeded, and nothing stays.
func TestQueue_Model(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.FixedWindow, sluice.SlidingLog} {
		synctest.Test(t, func(t *testing.T) {
			own := limiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerSecond(3), Stats: true})
			all := limiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerSecond(8), Stats: true})
			d := newDesk(t, QueueTerms{12, 4, 3 * time.Second},
				queuePolicy{Name: "own", Limiter: own, Key: byClient}, queuePolicy{Name: "all", Limiter: all, Key: byNothing, MaxPerKey: 10})
			r := seeded.Rand(t)
			const n = 2000
			events := make(chan event, n)
			clients := make([]string, n)
			passed := map[Outcome]int{}
			ended := make([]event, n)
			for i := range n {
				clients[i] = string(rune('a' + r.IntN(5)))
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(3) == 0 {
					time.AfterFunc(time.Duration(r.IntN(1500))*time.Millisecond, cancel)
				}
				came := time.Now()
				go func() {
					defer cancel()
					decision := d.ask(ctx, &request{client: clients[i]})
					events <- event{i, time.Now(), time.Since(came), decision}
				}()
				synctest.Wait()
				d.queue.mu.Lock()
				require.LessOrEqual(t, d.queue.waiting.Load(), int64(12))
				for k, l := range d.queue.lines {
					if k.limiter == own {
						require.LessOrEqual(t, l.places, 4)
					} else {
						require.LessOrEqual(t, l.places, 10)
					}
				}
				d.queue.mu.Unlock()
				time.Sleep(time.Duration(r.IntN(120)) * time.Millisecond)
			}
			byClient := map[string][]event{}
			for range n {
				e := <-events
				ended[e.number] = e
			}
			for i, e := range ended {
				passed[e.Outcome]++
				require.LessOrEqual(t, e.after, 3*time.Second)
				byClient[clients[i]] = append(byClient[clients[i]], e)
			}
			for _, es := range byClient {
				inOrder(t, es)
			}
			for _, outcome := range []Outcome{Admitted, Denied, Gone} {
				require.Greater(t, passed[outcome], n/50, "%v: %v", algorithm, passed)
			}
			require.EqualValues(t, passed[Admitted], own.Stats().Admitted)
			require.EqualValues(t, passed[Admitted], all.Stats().Admitted)
			d.fresh()
			counted := map[string]uint64{}
			d.queue.Metrics("q").Read(func(m *metrics.Desc, v uint64, labels ...string) { counted[fmt.Sprint(m.Name, labels)] = v })
			require.EqualValues(t, passed[Denied], counted["sluice.queue.calls[turned_away]"])
			require.EqualValues(t, passed[Gone], counted["sluice.queue.calls[gone]"])
			require.Positive(t, counted["sluice.queue.calls[passed]"])
			require.Zero(t, counted["sluice.queue.waiting[]"])
		})
	}
}
