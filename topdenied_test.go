package sluice

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTopDenied_SpaceSaving compares the counters with exact counts: whatever the
// stream, a count is too high by at most its Excess and never too low, all counts add
// up to the samples, and any key above a share of 1/n is there.
func TestTopDenied_SpaceSaving(t *testing.T) {
	rng := newRand(t)
	for range 300 {
		n := 1 + rng.IntN(20)
		top := newTopDenied(n)
		exact := map[uint64]uint64{}
		samples := rng.IntN(3000)
		keys := 1 + rng.IntN(200)
		var before, copied []DeniedKey
		for i := range samples {
			if i == samples/2 {
				before = top.list() // which is nobody else's from then on
				copied = slices.Clone(before)
			}
			// A few keys make up most of it, as with real denials.
			id := 1 + uint64(float64(keys)*math.Pow(rng.Float64(), 3))
			exact[id]++
			top.count(id, fmt.Sprint("key", id))
		}
		require.Equal(t, copied, before)
		list := top.list()
		require.LessOrEqual(t, len(list), n)
		require.Equal(t, min(n, len(exact)), len(list))
		sum, listed := uint64(0), map[uint64]bool{}
		for i, e := range list {
			truth := exact[e.ID] * denialsASample
			require.Equal(t, fmt.Sprint("key", e.ID), e.Name)
			require.LessOrEqual(t, e.Denied-e.Excess, truth)
			require.GreaterOrEqual(t, e.Denied, truth)
			require.True(t, i == 0 || list[i-1].Denied >= e.Denied, "sorted")
			require.False(t, listed[e.ID], "listed twice")
			listed[e.ID] = true
			sum += e.Denied
		}
		require.Equal(t, uint64(samples*denialsASample), sum)
		for id, count := range exact {
			require.True(t, count*uint64(n) <= uint64(samples) || listed[id], "%d of %d samples, %d counters", count, samples, n)
		}
	}
}

// TestTopDenied_EveryWayToBeDenied: the sample is of 1 in 64, so that 40,000 denials
// are 625 samples, give or take 125 (5 sigma).
func TestTopDenied_EveryWayToBeDenied(t *testing.T) {
	const calls = 40_000
	for name, deny := range map[string]func(l *Limiter){
		"Allow":       func(l *Limiter) { l.Allow("bad") },
		"AllowN":      func(l *Limiter) { l.AllowN("bad", 2) },
		"Take":        func(l *Limiter) { l.Take("bad", 1) },
		"above burst": func(l *Limiter) { l.AllowN("bad", 4) },
		"negative":    func(l *Limiter) { l.Take("bad", -1) },
		"Key.Allow":   func(l *Limiter) { l.Key("bad").Allow() },
		"Key.AllowN":  func(l *Limiter) { l.Key("bad").AllowN(2) },
		"Key.Take":    func(l *Limiter) { l.Key("bad").Take(1) },
		"Key.AllowAt": func(l *Limiter) { l.Key("bad").AllowAt(start.UnixNano(), 1) },
		"Key.TakeAt":  func(l *Limiter) { l.Key("bad").TakeAt(start.UnixNano(), 1) },
		"TakeAll":     func(l *Limiter) { TakeAll(Charge{l.Key("good"), 1}, Charge{l.Key("bad"), 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, h := range []Hash{Seeded, Stable} {
				l, _ := newFrozen(t, Config{Limit: PerHour(3), TopDenied: 4, Hash: h})
				require.True(t, l.AllowN("bad", 3))
				for range calls {
					deny(l)
					l.AllowN("bad", 0)
					l.Peek("bad", 1)
				}
				list := l.TopDenied()
				require.Len(t, list, 1)
				require.Equal(t, l.Key("bad").id, list[0].ID)
				require.Zero(t, list[0].Excess)
				require.InDelta(t, calls, list[0].Denied, calls/5)
				if strings.Contains(name, "Key.") || name == "TakeAll" {
					require.Empty(t, list[0].Name)
					l.Allow("bad") // not every denial is looked at
					for list[0].Name == "" {
						l.Allow("bad")
						list = l.TopDenied()
					}
				}
				require.Equal(t, "bad", list[0].Name)
			}
		})
	}
}

func TestTopDenied_IsOffByDefault(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: DenyAll})
	for range 100 {
		l.Allow("bad")
	}
	require.Nil(t, l.TopDenied())
}

// TestTopDenied_NamesAreBounded: a name is a copy of at most 256 bytes.
func TestTopDenied_NamesAreBounded(t *testing.T) {
	top := newTopDenied(1)
	top.count(1, strings.Repeat("x", 1<<20))
	require.Equal(t, strings.Repeat("x", maxName), top.list()[0].Name)
}

func TestTopDenied_Concurrent(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: DenyAll, TopDenied: 8})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 20_000 {
				l.Allow(fmt.Sprint("key", g, i%50))
				if i%1000 == 0 {
					require.LessOrEqual(t, len(l.TopDenied()), 8)
				}
			}
		})
	}
	wg.Wait()
	list := l.TopDenied()
	require.Len(t, list, 8)
	sum := uint64(0)
	for _, e := range list {
		sum += e.Denied
	}
	require.LessOrEqual(t, sum, uint64(2*80_000), "twice what there was would be 50 sigma")
	require.Positive(t, sum)
}
