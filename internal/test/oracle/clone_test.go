package oracle

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestClone: a clone is equal to its original until one of them is called, under every
// algorithm, and goes its own way then.
func TestClone(t *testing.T) {
	for _, c := range []Config{
		{Rate: 8, Period: 80},
		{Algorithm: TokenBucket, Rate: 8, Period: 80},
		{Algorithm: TokenBucket, Rate: 8, Period: 80, Interval: true},
		{Algorithm: LeakyBucket, Rate: 8, Period: 80},
		{Algorithm: SlidingWindow, Rate: 8, Period: 80},
		{Algorithm: SlidingLog, Rate: 8, Period: 80},
		{Algorithm: FixedWindow, Rate: 8, Period: 80},
		{Algorithm: FixedWindow, Rate: 8, Period: 80, FirstCharge: true},
	} {
		m := New(c)
		m.Take("k", 100, 3)
		m.Block("b", 100, 50)
		own := c
		own.Rate = 4
		m.SetKeyLimit("own", 100, own)
		calls := map[string]func(m *Model){
			"take":     func(m *Model) { m.Take("k", 101, 2) },
			"refund":   func(m *Model) { m.Refund("k", 101, 1) },
			"reset":    func(m *Model) { m.Reset("k") },
			"new":      func(m *Model) { m.Take("new", 101, 1) },
			"unblock":  func(m *Model) { m.Unblock("b") },
			"block":    func(m *Model) { m.Block("b", 101, 99) },
			"limit":    func(m *Model) { m.SetLimit(101, own) },
			"no limit": func(m *Model) { m.ClearKeyLimit("own", 101) },
		}
		for name, call := range calls {
			one, other := m.Clone(), m.Clone()
			assert.True(t, one.Equal(other) && one.Equal(m), "%+v", c)
			call(one)
			assert.False(t, one.Equal(other), "%s of %+v", name, c)
			assert.True(t, other.Equal(m), "%s of %+v", name, c)
			call(other)
			assert.True(t, one.Equal(other), "%s of %+v", name, c)
			assert.Equal(t, one.Peek("k", 105, 0), other.Peek("k", 105, 0))
		}
	}
}

// TestCloneIsIndependent: charging one clone changes neither the other nor the
// state they were made from.
func TestCloneIsIndependent(t *testing.T) {
	for _, k := range kinds {
		k.Rate, k.Period = 100, 100
		s := New(k).main.fresh()
		for now := int64(201); now < 209; now++ {
			first, second := s.clone(), s.clone()
			before := fingerprint(s, now)
			second.charge(now, 2)
			want := fingerprint(second, now)
			first.charge(now, 1)
			assert.Equal(t, before, fingerprint(s, now), kindName(k))
			s.charge(now, 3)
			assert.Equal(t, want, fingerprint(second, now), kindName(k))
			assert.NotEqual(t, want, fingerprint(s, now), kindName(k))
			assert.NotEqual(t, want, fingerprint(first, now), kindName(k))
		}
	}
}
