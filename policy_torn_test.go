package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests of this file put something between what a call reads of a wide key and what it
// makes of it, at the place where another goroutine would have to come in between.

// meanwhileWide does something before and after the next description reads the tail.
type meanwhileWide struct {
	wideAlgorithm
	before, after func()
}

func (m *meanwhileWide) describe(key state, now int64, cost int, charges bool) (bool, int, time.Duration, time.Duration) {
	before, after := m.before, m.after
	if m.before, m.after = nil, nil; before != nil {
		before()
		defer after()
	}
	return m.wideAlgorithm.describe(key, now, cost, charges)
}

// meanwhile makes the next description of a wide key do something before and after it.
func meanwhile(l *Limiter, before, after func()) {
	w := &meanwhileWide{wideAlgorithm: l.policyOf(0).wide, before: before, after: after}
	setAlgorithm(l, nil, w)
}

// forEveryTail runs f for each wide layout.
func forEveryTail(t *testing.T, f func(t *testing.T, c Config)) {
	t.Helper()
	forEveryLayout(t, func(t *testing.T, c Config) {
		if l, _ := newFrozen(t, c); l.policyOf(0).wide != nil {
			f(t, c)
		}
	})
}

func nothing() {}

// TestPenalty_ChargesBetweenAreSeen: what others do before the word is swapped, or between
// the two looks at it, is not lost.
func TestPenalty_ChargesBetweenAreSeen(t *testing.T) {
	forEveryTail(t, func(t *testing.T, c Config) {
		for _, late := range []bool{false, true} {
			do := func(l *Limiter, f func()) {
				if late {
					meanwhile(l, nothing, f)
				} else {
					meanwhile(l, f, nothing)
				}
			}
			l, clock := newFrozen(t, c)
			k, burst := l.Key("k"), int(l.policyOf(0).burst)
			require.True(t, k.Allow())
			do(l, func() { require.True(t, k.AllowN(burst-1)) })
			require.False(t, k.Take(1).Allowed, "a charge was overlooked")
			k.Reset()
			require.True(t, k.AllowN(burst))
			do(l, func() { k.Refund(burst) })
			require.True(t, k.Take(1).Allowed || !late, "a refund was overlooked")
			k.Reset()
			require.True(t, k.Allow())
			do(l, func() { k.Block(time.Hour) })
			require.Equal(t, time.Hour, k.Take(1).RetryAfter, "a block was overlooked")
			want := Decision{Limit: burst, RetryAfter: time.Hour, ResetAfter: time.Hour}
			require.Equal(t, want, k.Peek(1))
			// The block is over, and becomes longer: the word is the same.
			clock.Advance(time.Hour)
			do(l, func() { k.Block(time.Hour) })
			require.Equal(t, want, k.Take(1), "a longer block was overlooked")
		}
	})
}

// TestBlockFor_RefundUnderADenial: a refund of units of the window before leaves the word of
// a wide sliding window as it is. A call that was to be denied finds room all the same, and
// does not block.
func TestBlockFor_RefundUnderADenial(t *testing.T) {
	for _, block := range []time.Duration{0, 1000 * time.Hour} {
		c := layoutNamed("sliding-window-wide").withMany()
		c.BlockFor, c.CountDenied = block, true
		l, clock := newFrozen(t, c)
		k, burst := l.Key("k"), int(l.policyOf(0).burst)
		require.True(t, k.AllowN(burst))
		clock.Set(start.Truncate(time.Second).Add(time.Second + time.Millisecond))
		require.True(t, k.AllowN(1))
		k.Refund(1) // the word says nothing of this window, the tail all of the last
		meanwhile(l, nothing, func() { k.Refund(burst) })
		require.Equal(t, Decision{Allowed: true, Limit: burst, ResetAfter: 1999 * ms}, k.Take(burst))
	}
}

// TestBlock_TornReadOfAWideKey: a Block and an Unblock between the two looks of a reader
// leave the word of a wide sliding window as it was, and the time of the block, which the
// reader has found in the tail, is taken for the count of the window before.
func TestBlock_TornReadOfAWideKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for name, look := range map[string]func(Key) Decision{
			"peek": func(k Key) Decision { return k.Peek(1) },
			"take": func(k Key) Decision { return k.Take(1) },
		} {
			l, _ := newFrozen(t, c)
			if l.policyOf(0).wide == nil {
				t.Skip("one word is read at once")
			}
			k := l.Key("k")
			require.True(t, k.Allow())
			k.Refund(1)
			meanwhile(l, func() { k.Block(time.Hour) }, k.Unblock)
			d := look(k)
			fresh := d.Allowed && d.RetryAfter == 0
			blocked := !d.Allowed && d.RetryAfter == time.Hour
			require.True(t, fresh || blocked, "%s: neither blocked nor fresh: %+v", name, d)
		}
	})
}

// TestTakeAll_LeavesABlockThatIsOver: a TakeAll that charges nothing for a key leaves it as
// it was, also if that is a block that is over. Otherwise an older time is admitted that
// was denied before, and charged as at a time that the key has long seen.
func TestTakeAll_LeavesABlockThatIsOver(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		full := mustNew(t, Config{Limit: DenyAll, Clock: clock})
		k, older := l.Key("k"), clock.Now()
		require.True(t, k.Block(time.Hour))
		clock.Advance(2 * time.Hour)
		require.False(t, k.AllowAt(older, 1))
		before := snapshot(l)
		TakeAll(Charge{k, 1}, Charge{full.Key("k"), 1})
		require.Equal(t, before, snapshot(l), "a denied TakeAll has written")
		TakeAll(Charge{k, 0})
		require.Equal(t, before, snapshot(l), "a cost of 0 has written")
		require.False(t, k.AllowAt(older, 1))
	})
}
