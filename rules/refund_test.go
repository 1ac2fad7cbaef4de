package rules

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// refundable is rules for "k", of 100 a minute, by each way to count.
var refundable = []struct {
	name, limit, rest string
	config            sluice.Config
	noAtomic          bool
}{
	{name: "default", limit: "unit: minute", config: sluice.Config{Algorithm: sluice.FixedWindow}},
	{name: "own counter", limit: "unit: minute, offset: 7s", config: sluice.Config{Algorithm: sluice.FixedWindow, Offset: 7 * time.Second}},
	{name: "shadow", limit: "unit: minute", rest: ", shadow_mode: true", config: sluice.Config{Algorithm: sluice.FixedWindow}},
	{name: "uncounted", limit: "unit: minute, count_denied: false", config: sluice.Config{Algorithm: sluice.FixedWindow}},
	{name: "soft", limit: "unit: minute, soft: 10", config: sluice.Config{Algorithm: sluice.FixedWindow, Soft: 10}},
	{name: "gcra", limit: "unit: minute, algorithm: gcra", config: sluice.Config{Algorithm: sluice.GCRA}},
	{name: "gcra shadow", limit: "unit: minute, algorithm: gcra", rest: ", shadow_mode: true", config: sluice.Config{Algorithm: sluice.GCRA}},
	{name: "gcra block", limit: "unit: minute, algorithm: gcra, block_for: 1m", config: sluice.Config{Algorithm: sluice.GCRA, BlockFor: time.Minute}},
	{name: "token-bucket", limit: "unit: minute, algorithm: token-bucket", config: sluice.Config{Algorithm: sluice.TokenBucket}},
	{name: "leaky-bucket", limit: "unit: minute, algorithm: leaky-bucket", config: sluice.Config{Algorithm: sluice.LeakyBucket}},
	{name: "sliding-window", limit: "unit: minute, algorithm: sliding-window", config: sluice.Config{Algorithm: sluice.SlidingWindow}},
	{name: "sliding-window counted", limit: "unit: minute, algorithm: sliding-window, count_denied: true", config: sluice.Config{Algorithm: sluice.SlidingWindow, CountDenied: true}, noAtomic: true},
	{name: "sliding-log", limit: "unit: minute, algorithm: sliding-log", config: sluice.Config{Algorithm: sluice.SlidingLog}},
	{name: "sliding-log counted", limit: "unit: minute, algorithm: sliding-log, count_denied: true", config: sluice.Config{Algorithm: sluice.SlidingLog, CountDenied: true}, noAtomic: true},
}

// refundWays are the ways in which calls of several descriptors are judged.
var refundWays = []struct {
	name         string
	atomic, stop bool
}{{"usual", false, false}, {"atomic", true, false}, {"stop", false, true}, {"atomic, stop", true, true}}

func forEveryRefund(t *testing.T, f func(t *testing.T, text string, c Config, worst func(time.Duration) int)) {
	for _, r := range refundable {
		for _, way := range refundWays {
			if way.atomic && r.noAtomic {
				continue
			}
			t.Run(r.name+", "+way.name, func(t *testing.T) {
				c := r.config
				c.Limit = sluice.PerMinute(100)
				l, err := sluice.New(c)
				require.NoError(t, err)
				text := fmt.Sprintf("domain: d\nsluice: {atomic: %v}\ndescriptors:\n- {key: k%s, rate_limit: {%s, requests_per_unit: 100}}\n"+
					"- {key: ban, rate_limit: {unit: minute, requests_per_unit: 0}}\n", way.atomic, r.rest, r.limit)
				f(t, text, Config{StopWhenOver: way.stop}, l.WorstCase)
			})
		}
	}
}

func refund(s string, n uint64) Descriptor {
	return Descriptor{Entries: entries(s), Hits: &n, Refund: true}
}

// TestRefund_OfDeniedHits: a denied call and its refund leave no more than there was.
func TestRefund_OfDeniedHits(t *testing.T) {
	forEveryRefund(t, func(t *testing.T, text string, c Config, _ func(time.Duration) int) {
		w := newWorld(t, c, text)
		require.False(t, w.ask(withHits("k=a", 90)).Statuses[0].Over)
		left := w.left("k=a")
		for range 5 {
			require.True(t, w.ask(withHits("k=a", 30)).Statuses[0].Over)
			require.Equal(t, OK, w.ask(refund("k=a", 30)).Code)
			require.LessOrEqual(t, w.left("k=a"), left)
		}
		require.EqualValues(t, 150, w.series("d.k").Refunded)
	})
}

// TestRefund_NetsToZero: where each refund is of a call, what is left is what it was, and refunds of admitted hits
// are given back.
func TestRefund_NetsToZero(t *testing.T) {
	for _, limit := range []string{"unit: minute", "unit: minute, algorithm: gcra", "unit: minute, algorithm: sliding-log", "unit: minute, algorithm: sliding-window"} {
		for _, options := range []string{"{}", "{atomic: true}"} {
			w := newWorld(t, Config{}, "domain: d\nsluice: "+options+"\ndescriptors:\n- {key: k, rate_limit: {"+limit+", requests_per_unit: 100}}\n")
			w.ask(withHits("k=a", 90))
			for range 5 {
				require.Equal(t, OverLimit, w.ask(withHits("k=a", 30)).Code)
			}
			w.ask(refund("k=a", 150))
			require.Equal(t, 10, w.left("k=a"), limit+options)
			w.ask(refund("k=a", 40))
			require.Equal(t, 50, w.left("k=a"), limit+options)
			w.ask(refund("k=b", 1))
			require.Equal(t, 100, w.left("k=b"), limit+options)
		}
	}
}

// TestRefund_Estimates: of 50 units left, calls that estimate 100, use 30, and settle at the end, are admitted
// while the limit says so, whatever the denied ones give back.
func TestRefund_Estimates(t *testing.T) {
	forEveryRefund(t, func(t *testing.T, text string, c Config, _ func(time.Duration) int) {
		w := newWorld(t, c, text)
		w.ask(withHits("k=a", 50))
		for range 200 {
			require.True(t, w.ask(withHits("k=a", 100)).Statuses[0].Over)
			w.ask(refund("k=a", 70))
		}
	})
}

// TestRefund_InTheNextWindow: its count does not hold what was denied before.
func TestRefund_InTheNextWindow(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	for _, d := range []func(n uint64, back bool) Descriptor{
		func(n uint64, back bool) Descriptor {
			return Descriptor{Entries: entries("ten=a"), Hits: &n, Refund: back}
		},
		func(n uint64, back bool) Descriptor {
			return Descriptor{Entries: entries("free=b"), Hits: &n, Refund: back, Override: &Override{10, Minute}}
		},
	} {
		w.ask(d(10, false))
		require.Equal(t, OverLimit, w.ask(d(4, false)).Code)
		w.clock.Advance(time.Minute)
		require.Equal(t, OK, w.ask(d(10, false)).Code)
		require.Equal(t, OverLimit, w.ask(d(5, false)).Code)
		require.EqualValues(t, 0, w.ask(d(4, true)).Statuses[0].Remaining, "of the window before")
		require.EqualValues(t, 0, w.ask(d(5, true)).Statuses[0].Remaining, "of this one")
		require.EqualValues(t, 3, w.ask(d(3, true)).Statuses[0].Remaining, "of what was admitted")
	}
	require.EqualValues(t, 4, w.series("d.ten").Absorbed)
	require.EqualValues(t, 4, w.series("override").Absorbed)
	require.EqualValues(t, 12, w.series("d.ten").Refunded)
	require.Zero(t, w.Engine.Stats().Denied)
}

// TestRefund_OfAnOverride has nothing to do with what the rule has denied, nor one of another unit.
func TestRefund_OfAnOverride(t *testing.T) {
	w := newWorld(t, Config{}, oneRule("{unit: minute, requests_per_unit: 10, algorithm: gcra}"))
	d := override("k=a", 3, Day)
	n := uint64(4)
	d.Hits = &n
	require.Equal(t, OverLimit, w.ask(d).Code)
	w.clock.Advance(24 * time.Hour)
	w.ask(withHits("k=a", 10))
	require.EqualValues(t, 2, w.ask(refund("k=a", 2)).Statuses[0].Remaining)
	d.Override = &Override{3, Hour}
	w.ask(override("k=a", 3, Hour))
	n, d.Refund = 1, true
	require.EqualValues(t, 3, w.ask(d).Statuses[0].Remaining)
	require.Equal(t, 1, w.Engine.Stats().Denied)
}

// TestRefund_OfAFullCounter: hits beyond what a window can count are not in the count.
func TestRefund_OfAFullCounter(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	w.ask(withHits("ten=a", 10))
	for range 5 {
		require.Equal(t, OverLimit, w.ask(withHits("ten=a", maxHits)).Code)
	}
	for range 5 {
		w.ask(refund("ten=a", maxHits))
	}
	require.Equal(t, OverLimit, w.one("ten=a").Code)
}

// TestRefund_OfStoppedCalls: of a call that counts nothing, since another descriptor is over its limit, there is nothing to give back.
func TestRefund_OfStoppedCalls(t *testing.T) {
	forEveryRefund(t, func(t *testing.T, text string, c Config, _ func(time.Duration) int) {
		w := newWorld(t, c, text)
		w.ask(withHits("k=a", 90))
		left := w.left("k=a")
		require.Equal(t, OverLimit, w.ask(withHits("k=a", 5), describe("ban=a")).Code)
		w.ask(refund("k=a", 5))
		require.LessOrEqual(t, w.left("k=a"), left)
	})
}

// TestRefund_Waits for the period of the limit, and between an hour and a day, from the last denial on.
func TestRefund_Waits(t *testing.T) {
	for unit, wait := range map[string]time.Duration{"second": time.Hour, "hour": time.Hour, "day": 24 * time.Hour, "year": 24 * time.Hour} {
		for _, limit := range []string{"algorithm: gcra", "count_denied: false", "offset: 0s"} {
			for late, left := range map[time.Duration]int{-1: 0, 0: 5} {
				w := newWorld(t, Config{}, oneRule("{unit: "+unit+", requests_per_unit: 10, "+limit+"}"))
				w.clock.Set(time.Date(2027, 12, 31, 12, 0, 0, 0, time.UTC))
				require.Equal(t, OverLimit, w.ask(withHits("k=a", 11)).Code)
				w.clock.Advance(wait - 1)
				require.Equal(t, OverLimit, w.ask(withHits("k=a", 11)).Code)
				w.clock.Advance(wait + late)
				if limit == "offset: 0s" && unit == "year" { // its count holds what was denied
					continue
				}
				w.ask(withHits("k=a", 10))
				require.EqualValues(t, left, w.ask(refund("k=a", 5)).Statuses[0].Remaining, "%s %s %v", unit, limit, late)
			}
		}
	}
}

// TestRefund_Carried over reloads, also with another algorithm, and by snapshots.
func TestRefund_Carried(t *testing.T) {
	rule := func(limit string) string { return oneRule("{requests_per_unit: 100, " + limit + "}") }
	for _, limit := range []string{"unit: day, algorithm: gcra", "unit: day, algorithm: sliding-log", "unit: day, count_denied: false", "unit: day, offset: 1h"} {
		for _, next := range []string{limit, "unit: hour, algorithm: token-bucket"} {
			denied := func() *world {
				w := newWorld(t, Config{}, rule(limit))
				w.ask(withHits("k=a", 100))
				require.Equal(t, OverLimit, w.ask(withHits("k=a", 40)).Code)
				return w
			}
			w := denied()
			require.NoError(t, w.Swap(mustLoad(t, rule(next))))
			again, err := denied().restored(rule(next), denied().snapshot())
			require.NoError(t, err)
			for name, w := range map[string]*world{"reload": w, "snapshot": again} {
				w.clock.Advance(24*time.Hour - 1)
				w.ask(withHits("k=a", uint64(w.left("k=a"))))
				require.EqualValues(t, 0, w.ask(refund("k=a", 40)).Statuses[0].Remaining, "%s: %s, %s", name, limit, next)
				require.EqualValues(t, 7, w.ask(refund("k=a", 7)).Statuses[0].Remaining, "%s: %s, %s", name, limit, next)
			}
		}
	}
}

// TestRefund_OlderSnapshot has no denied hits, and is restored.
func TestRefund_OlderSnapshot(t *testing.T) {
	w := newWorld(t, Config{}, kinds)
	for _, k := range kindKeys {
		w.ask(withHits(k, 4))
	}
	old := w.snapshot()
	old = old[:bytes.Index(old, []byte(denialSection))-4]
	again, err := w.restored(kinds, sign(append(old, 0, 0, 0, 0)))
	require.NoError(t, err)
	for _, k := range kindKeys {
		require.Equal(t, 6, again.left(k))
	}
}

// history is a random one of calls for a key, and what it has been admitted and kept.
type history struct {
	*world
	r              *rand.Rand
	text           string
	config         Config
	kept           []keptHits // the newest last
	denied         uint64     // hits that were, and whose refunds have not come
	admitted, back int        // since the start: hits of admitted calls, and those that these have given back
	open           []openCall
	denials        int
}

type keptHits struct {
	at time.Duration
	n  uint64
}

type openCall struct {
	hits   uint64
	denied bool
}

// call asks for an estimate, sometimes with a descriptor that denies.
func (h *history) call() {
	n := uint64(1 + h.r.IntN(60))
	ds := []Descriptor{withHits("k=a", n)}
	if h.r.IntN(4) == 0 {
		ds = append(ds, describe("ban=a"))
	}
	resp := h.ask(ds...)
	counts := !resp.Statuses[0].Over
	if h.Engine.config.StopWhenOver || strings.Contains(h.text, "atomic: true") {
		counts = counts && resp.Code == OK
	}
	h.open = append(h.open, openCall{n, !counts})
	if !counts {
		h.denied += n
		h.denials++
		return
	}
	h.admitted += int(n)
	h.kept = append(h.kept, keptHits{time.Duration(h.clock.Now()), n})
}

// settle gives back what an open call has not used: of a denied one all, and sometimes less.
func (h *history) settle() {
	if len(h.open) == 0 {
		return
	}
	i := h.r.IntN(len(h.open))
	c := h.open[i]
	h.open = slices.Delete(h.open, i, i+1)
	n := c.hits
	if !c.denied || h.r.IntN(3) == 0 {
		n = uint64(h.r.IntN(int(n) + 1))
	}
	if !c.denied {
		h.back += int(n)
	}
	require.Equal(h.tb, OK, h.ask(refund("k=a", n)).Code)
	of := min(n, h.denied)
	h.denied -= of
	for n -= of; n > 0 && len(h.kept) > 0; {
		last := &h.kept[len(h.kept)-1]
		of := min(n, last.n)
		last.n -= of
		n -= of
		if last.n == 0 {
			h.kept = h.kept[:len(h.kept)-1]
		}
	}
}

// renew puts the rules into force again, or goes on from a snapshot.
func (h *history) renew() {
	if h.r.IntN(2) == 0 {
		require.NoError(h.tb, h.Swap(mustLoad(h.tb, h.text)))
		return
	}
	c := h.config
	c.Clock = h.clock
	e, err := Restore(mustLoad(h.tb, h.text), c, bytes.NewReader(h.snapshot()))
	require.NoError(h.tb, err)
	h.Engine = e
}

// TestRefund_WorstCase: over random histories of estimates, denials, settlements, reloads and restarts, what was
// admitted and kept is at most WorstCase: in all, and in each span, if refunds are first of what was denied.
func TestRefund_WorstCase(t *testing.T) {
	r := seeded.Rand(t)
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	forEveryRefund(t, func(t *testing.T, text string, c Config, worst func(time.Duration) int) {
		denials, back := 0, 0
		for range rounds {
			h := &history{world: newWorld(t, c, text), r: r, text: text, config: c}
			begin := h.clock.Now()
			for range 120 {
				switch h.r.IntN(10) {
				case 0, 1, 2, 3:
					h.call()
				case 4, 5, 6, 7:
					h.settle()
				case 8:
					h.clock.Advance(time.Duration(h.r.Int64N(int64(2 * time.Minute))))
				case 9:
					h.renew()
				}
				require.LessOrEqual(t, h.admitted-h.back, worst(time.Duration(h.clock.Now()-begin)))
			}
			for i, from := range h.kept {
				sum := uint64(0)
				for _, to := range h.kept[i:] {
					sum += to.n
					require.LessOrEqual(t, sum, uint64(worst(to.at-from.at)), "in %v", to.at-from.at)
				}
			}
			denials, back = denials+h.denials, back+h.back
		}
		require.Greater(t, denials, rounds)
		require.Greater(t, back, rounds)
	})
}

// TestRefund_Concurrent: calls that come at the same time, each of which is settled, keep at most the limit.
func TestRefund_Concurrent(t *testing.T) {
	for _, limit := range []string{"unit: year", "unit: year, algorithm: gcra", "unit: year, algorithm: sliding-log"} {
		for _, options := range []string{"{}", "{atomic: true}"} {
			w := newWorld(t, Config{}, "domain: d\nsluice: "+options+"\ndescriptors:\n- {key: k, rate_limit: {"+limit+", requests_per_unit: 1000}}\n")
			var kept atomic.Int64
			call := func() bool {
				var resp Response
				_ = w.Decide(&Request{Domain: "d", Descriptors: []Descriptor{withHits("k=a", 100)}}, &resp)
				admitted, back := resp.Code == OK, uint64(100)
				if admitted {
					back = 97
					kept.Add(3)
				}
				_ = w.Decide(&Request{Domain: "d", Descriptors: []Descriptor{refund("k=a", back)}}, &resp)
				return admitted
			}
			var wait sync.WaitGroup
			for range 8 {
				wait.Go(func() {
					for range 500 {
						call()
					}
				})
			}
			wait.Wait()
			require.LessOrEqual(t, kept.Load(), int64(1000), limit+options)
			// How far the eight come is up to the scheduler: one that waits holds 100. One alone goes on to the edge.
			for range 1000 {
				require.Equal(t, kept.Load() <= 900, call(), limit+options)
			}
			require.EqualValues(t, 903, kept.Load(), limit+options)
			require.EqualValues(t, 1000-kept.Load(), w.left("k=a"))
			require.Zero(t, w.Engine.Stats().Denied)
		}
	}
}
