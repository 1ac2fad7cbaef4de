package promises

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/limittest"
)

func quiet(string, ...any) {}

// generous is a limiter that admits so many more a day than it promises.
func generous(more int) Subject {
	return Subject{
		Subject: peers.Subject{Name: "generous", New: func(o peers.Options) (peers.Limiter, error) {
			lim := sluice.Must(sluice.New(sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.Per(o.Burst+more, 50*365*24*time.Hour)}))
			return limiterFunc{lim.Allow, func() {}}, nil
		}},
		Says: "a burst", Most: "burst",
		Promise: func(o peers.Options) limittest.Promise {
			return limittest.Bound(func(time.Duration) int { return o.Burst }, 0)
		},
	}
}

// TestRun_FindsOneUnit: a limiter that admits one unit too many in a day is found out, and one that does not is not.
func TestRun_FindsOneUnit(t *testing.T) {
	c := Config{Rounds: 2, Span: 3 * time.Millisecond, Seed: 1, Log: quiet}
	all, err := Run(t.Context(), c, []Subject{generous(0), generous(1)})
	require.NoError(t, err)
	require.Len(t, all, 2)
	for i, r := range all {
		assert.Equal(t, 2*len(situations()), r.Runs)
		assert.Positive(t, r.Admitted)
		assert.Equal(t, i == 1, r.Broken > 0)
	}
	smallest := all[1].Smallest
	require.NotNil(t, smallest)
	assert.Equal(t, smallest.Most+1, smallest.Admitted)
	assert.NotEmpty(t, all[1].Situations)
}

func TestRun_Ends(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, Config{Rounds: 1, Span: time.Millisecond, Log: quiet}, []Subject{generous(0)})
	assert.ErrorIs(t, err, context.Canceled)
	broken := errors.New("no")
	s := generous(0)
	s.New = func(peers.Options) (peers.Limiter, error) { return nil, broken }
	_, err = Run(t.Context(), Config{Rounds: 1, Span: time.Millisecond, Log: quiet}, []Subject{s})
	assert.ErrorIs(t, err, broken)
	s.New = func(peers.Options) (peers.Limiter, error) {
		return limiterFunc{func(string) bool { return false }, func() {}}, nil
	}
	_, err = Run(t.Context(), Config{Rounds: 1, Span: time.Millisecond, Log: quiet}, []Subject{s})
	assert.EqualError(t, err, "generous: nothing was admitted")
}

// TestSubjects_AreAll: every library and keyed peer once, and each of sluice's algorithms.
func TestSubjects_AreAll(t *testing.T) {
	var modules, names []string
	for _, s := range Subjects() {
		names = append(names, s.Name)
		modules = append(modules, s.Module)
		assert.NotEmpty(t, s.Says+s.Most)
	}
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names))
	for _, s := range peers.All() {
		if s.Module != "" {
			assert.Contains(t, modules, s.Module)
		}
	}
	assert.Equal(t, 6, count(modules, "github.com/sluice-go/sluice"))
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// TestSubjects_Admit: what each promises at once, under each limit, it admits; so that no promise is too generous at the start.
func TestSubjects_Admit(t *testing.T) {
	for _, s := range Subjects() {
		if s.Blocks {
			continue
		}
		for _, o := range []peers.Options{whole, uneven} {
			o.Period = 50 * 365 * 24 * time.Hour // so that none comes back
			l, err := s.New(o)
			require.NoError(t, err, s.Name)
			c := limittest.NewChecker(s.Promise(o))
			admitted := 0
			for l.Allow("k") {
				admitted++
				c.Record(1, "k", 1, true)
			}
			assert.Equal(t, o.Burst, admitted, s.Name)
			require.NoError(t, c.Err(), s.Name)
			l.Close()
		}
	}
}

// TestPromises: what they say is most in some spans. As much of it as can be comes at the beginning, the rest at the end.
func TestPromises(t *testing.T) {
	for _, c := range []struct {
		promise  promise
		d        time.Duration
		at, most int // at once, and within d
	}{
		{bucket, 0, 3, 3}, {bucket, 3_333_333, 3, 3}, {bucket, 3_333_334, 3, 4},
		{slack, 0, 4, 4}, {slack, 10 * time.Millisecond, 4, 7},
		{ticks, 0, 3, 3}, {ticks, 1, 3, 4}, {ticks, 3_333_333, 3, 4}, {ticks, 3_333_334, 3, 5},
		{windows, 0, 3, 3}, {windows, 1, 3, 6}, {windows, 10 * time.Millisecond, 3, 6},
		{counter, 0, 4, 4}, {counter, 1, 4, 5}, {counter, 10 * time.Millisecond, 4, 7},
	} {
		for _, n := range []int{c.most, c.most + 1} {
			checker := limittest.NewChecker(c.promise.of(uneven))
			checker.Record(1, "k", c.at, true)
			checker.Record(1+int64(c.d), "k", n-c.at, true)
			assert.Equal(t, n > c.most, checker.Err() != nil, "%s, %d within %v", c.promise.says, n, c.d)
		}
	}
}
