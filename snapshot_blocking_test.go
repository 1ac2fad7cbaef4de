package sluice

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A hooked is a writer and a reader that calls a function first, each time.
type hooked struct {
	bytes.Buffer
	hook func()
}

func (h *hooked) Write(b []byte) (int, error) {
	h.hook()
	return h.Buffer.Write(b)
}

func (h *hooked) Read(b []byte) (int, error) {
	h.hook()
	return h.Buffer.Read(b[:min(len(b), 1000)])
}

var (
	_ io.Writer = (*hooked)(nil)
	_ io.Reader = (*hooked)(nil)
)

// isFree reports that nobody holds a lock of the limiter. A test looks before it calls what
// takes these locks, so that it fails where it would wait for ever.
func isFree(t *testing.T, l *Limiter) bool {
	free := assert.True(t, l.admin.TryLock(), "the admin lock is held")
	if free {
		l.admin.Unlock()
	}
	for i := range l.shards {
		if s := &l.shards[i]; assert.True(t, s.mu.TryLock(), "shard %d is held", i) {
			s.mu.Unlock()
		} else {
			free = false
		}
	}
	return free
}

// changeAll makes each kind of change, and one decision. All of it is undone.
func changeAll(t *testing.T, l *Limiter) {
	limit := l.Config().Limit
	other := Per(3000, limit.Period)
	assertNoError(t, l.SetLimit(other))
	assertNoError(t, l.SetPlan("pro", Per(2000, limit.Period)))
	assertNoError(t, l.SetPlan("new", other))
	assertNoError(t, l.SetKeyPlan("x", "new"))
	assertNoError(t, l.SetKeyLimit("x", other))
	assert.True(t, l.Allow("x"))
	l.Reset("x")
	l.ClearKeyLimit("x")
	l.ClearPlan("new")
	assertNoError(t, l.SetPlan("pro", other))
	assertNoError(t, l.SetLimit(limit))
}

// spentLimiter has many keys that have spent 7 units, in and beside its tables, so that a
// snapshot takes several writes.
func spentLimiter(t *testing.T, c Config) (*Limiter, Config, []Key) {
	c.Hash, c.Shards = HashStable, 2
	l, clock := newFrozen(t, c)
	c.Clock = clock
	require.NoError(t, l.SetPlan("pro", Per(3000, c.Limit.Period)))
	var keys []Key
	for i := range 900 {
		k := l.KeyUint64(uint64(i))
		switch i % 100 {
		case 0:
			require.NoError(t, k.SetPlan("pro"))
		case 1:
			require.NoError(t, k.SetLimit(Per(2500, c.Limit.Period)))
		}
		require.True(t, k.AllowN(7))
		keys = append(keys, k)
	}
	return l, c, keys
}

func requireSpent(t *testing.T, l *Limiter, keys []Key) {
	t.Helper()
	for _, k := range keys {
		d := l.KeyHash(k.id).Peek(0)
		require.Equal(t, 7, d.Limit-d.Remaining)
	}
}

// TestSnapshot_HoldsNothingWhileItWrites: a writer may change all limits itself, and one
// that does not come to an end keeps nobody else from that.
func TestSnapshot_HoldsNothingWhileItWrites(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, c, keys := spentLimiter(t, c)
		calls := 0
		w := &hooked{hook: func() {
			calls++
			if isFree(t, l) {
				changeAll(t, l)
			}
		}}
		require.NoError(t, l.Snapshot(w))
		require.Greater(t, calls, 2)
		requireSpent(t, restoredFrom(t, c, w.Bytes()), keys)
		requireSpent(t, l, keys)

		w = &hooked{}
		whileItWaits(t, l, w, func() error { return l.Snapshot(w) })
		requireSpent(t, restoredFrom(t, c, w.Bytes()), keys)
		requireSpent(t, l, keys)
	})
}

// TestRestore_HoldsNothingWhileItReads, and takes over under the limit that is then in force.
func TestRestore_HoldsNothingWhileItReads(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, c, keys := spentLimiter(t, c)
		data := snapshotOf(t, l)
		for _, waits := range []bool{false, true} {
			other := mustNew(t, c)
			calls, limit := 0, Per(1500, c.Limit.Period)
			r := &hooked{hook: func() {
				calls++
				if isFree(t, other) {
					changeAll(t, other)
					assertNoError(t, other.SetLimit(limit))
				}
			}}
			r.Buffer.Write(data)
			if waits {
				whileItWaits(t, other, r, func() error { return other.Restore(r) })
			} else {
				require.NoError(t, other.Restore(r))
				require.Greater(t, calls, 2)
				require.Equal(t, limit, other.KeyHash(keys[2].id).Limit())
			}
			requireSpent(t, other, keys)
			require.Equal(t, 3000, other.KeyHash(keys[0].id).Limit().Rate, "the plan that was set meanwhile")
		}
	})
}

// whileItWaits lets a call wait in its first use of h, changes all limits meanwhile, and
// lets it go on.
func whileItWaits(t *testing.T, l *Limiter, h *hooked, call func() error) {
	waits, goOn := make(chan struct{}), make(chan struct{})
	first := true
	h.hook = func() {
		if first {
			first = false
			close(waits)
			<-goOn
		}
	}
	wait := goDo(1, func(int) { assertNoError(t, call()) })
	<-waits
	if isFree(t, l) {
		changeAll(t, l)
	}
	close(goOn)
	wait()
}
