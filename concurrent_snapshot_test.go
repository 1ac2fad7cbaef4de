package sluice

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSnapshot_WhileDecisionsRun: with the clock frozen, so that nothing comes back, every
// snapshot has of each key what had been charged at some instant while it was taken: no
// less than before it began, no more than when it had ended. Meanwhile keys are added,
// swept, charged together, and given other limits: all at once, or in the other case each its own, too.
func TestSnapshot_WhileDecisionsRun(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("limits of their own=%v", own), func(t *testing.T) {
			forEveryLayout(t, func(t *testing.T, c Config) {
				t.Parallel()
				snapshotsWhileDecisionsRun(t, c, own)
			})
		})
	}
}

func snapshotsWhileDecisionsRun(t *testing.T, c Config, own bool) {
	const hot, callers = 4, 2
	keys := []string{"hot0", "hot1", "hot2", "hot3"}
	c.Hash, c.Clock, c.Shards = HashStable, NewManualClock(start), 2
	l := mustNew(t, c)
	var done atomic.Bool
	var begun, charged [hot]atomic.Int64
	churn := goDo(1, func(int) { upset(t, l, own, &done) })
	wait := goDo(callers, func(g int) {
		for i := 0; i < 200 && !done.Load(); i++ {
			k := (g + i) % (hot - 1)
			begun[k].Add(1)
			begun[hot-1].Add(1)
			if !TakeAll(Charge{l.Key(keys[k]), 1}, Charge{l.Key(keys[hot-1]), 1}).Allowed {
				t.Error("denied within the burst")
			}
			charged[k].Add(1)
			charged[hot-1].Add(1)
			runtime.Gosched()
		}
	})
	for range 10 {
		var least, most [hot]int64
		for k := range least {
			least[k] = charged[k].Load()
		}
		var b bytes.Buffer
		if !assertNoError(t, l.Snapshot(&b)) {
			break
		}
		for k := range most {
			most[k] = begun[k].Load()
		}
		other := restoredFrom(t, c, b.Bytes())
		for k, key := range keys {
			spent := int64(spentOf(other, key))
			if spent < least[k] || spent > most[k] {
				t.Errorf("%s has spent %d in the snapshot; want %d to %d", key, spent, least[k], most[k])
			}
		}
		runtime.Gosched()
	}
	wait()
	cells := func() bool { return l.shardOf(l.Key(keys[1]).id).cells.Load() != nil }
	for own && !cells() { // on a busy machine upset has not run yet
		runtime.Gosched()
	}
	done.Store(true)
	churn()
	require.Equal(t, own, cells(), "or a Snapshot takes the lock")
	other := restoredFrom(t, c, snapshotOf(t, l))
	for k, key := range keys {
		require.Equal(t, int(charged[k].Load()), spentOf(other, key), "%s", key)
	}
}

// assertNoError reports an error where the test has to go on to wait for its goroutines.
func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// upset changes all around the hot keys, and their limits, those of their own included if own, but
// nothing that they can count.
func upset(t *testing.T, l *Limiter, own bool, done *atomic.Bool) {
	limit := l.Config().Limit
	other := limit
	if other.Burst != 0 {
		other.Burst *= 2
	} else {
		other.Rate *= 2
	}
	for i := 0; !done.Load(); i++ {
		k := l.Key(fmt.Sprint("filler", i%300))
		k.Allow()
		k.Reset()
		if i%16 == 0 {
			l.Sweep()
			assertNoError(t, l.SetLimit([]Limit{other, limit}[i/16%2]))
		}
		if own && i%8 == 0 {
			assertNoError(t, l.Key("hot1").SetLimit(other))
			assertNoError(t, l.Key("hot3").SetLimit(limit))
			l.Key("hot1").ClearLimit()
			l.Key("hot3").ClearLimit()
		}
	}
	assertNoError(t, l.SetLimit(limit))
}

// TestRestore_WhileDecisionsRun: a server that is already deciding takes over a snapshot.
// The units spent of a key are then at least what the snapshot says, and at most that
// and what has been charged since; and nobody waits for ever.
func TestRestore_WhileDecisionsRun(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		const keys, spent = 300, 20
		c.Hash, c.Clock, c.Shards = HashStable, NewManualClock(start), 2
		l := mustNew(t, c)
		for i := range keys {
			l.KeyUint64(uint64(i)).AllowN(spent)
		}
		data := snapshotOf(t, l)
		other := mustNew(t, c)
		// The callers begin once Restore has found that there is no key: their limits
		// are of their own until then, so that they do not count as keys.
		for i := range keys / 2 {
			require.NoError(t, other.KeyUint64(uint64(i)).SetLimit(c.Limit))
		}
		var charged [keys]atomic.Int64
		stop, begun := func() {}, false
		calls := func(g, i int) {
			k := (g + i) * 7 % (keys / 2)
			if charged[k].Load() < 50 && other.KeyUint64(uint64(k)).Allow() {
				charged[k].Add(1)
			}
			runtime.Gosched()
		}
		r := &hooked{hook: func() {
			if !begun {
				begun, stop = true, goUntil(2, calls)
			}
		}}
		r.Buffer.Write(data)
		err := other.Restore(r)
		stop()
		require.NoError(t, err)
		for i := range keys {
			d := other.KeyUint64(uint64(i)).Peek(0)
			require.GreaterOrEqual(t, d.Limit-d.Remaining, spent)
			require.LessOrEqual(t, d.Limit-d.Remaining, spent+int(charged[i].Load()))
		}
	})
}

// TestSnapshot_WaitsForWordsThatAreHeld: a TakeAll has the key in hand when it is to be
// written. What stands in its place meanwhile is no state.
func TestSnapshot_WaitsForWordsThatAreHeld(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Hash = HashStable
		l, clock := newFrozen(t, c)
		c.Clock = clock
		k := l.Key("k")
		require.True(t, k.AllowN(7))
		h := holdByHand(t, k)
		wait := goDo(1, func(int) {
			for range 100 {
				runtime.Gosched()
			}
			h.release()
		})
		data := snapshotOf(t, l)
		wait()
		require.Equal(t, 7, spentOf(restoredFrom(t, c, data), "k"))
		require.Equal(t, 7, spentOf(l, "k"), "and it can be charged again")
	})
}

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
	assertNoError(t, l.Key("x").SetLimit(other))
	assert.True(t, l.Allow("x"))
	l.Key("x").Reset()
	l.Key("x").ClearLimit()
	assertNoError(t, l.SetLimit(limit))
}

// spentLimiter has many keys that have spent 7 units, in and beside its tables, so that a
// snapshot takes several writes.
func spentLimiter(t *testing.T, c Config) (*Limiter, Config, []Key) {
	c.Hash, c.Shards = HashStable, 2
	l, clock := newFrozen(t, c)
	c.Clock = clock
	var keys []Key
	for i := range 900 {
		k := l.KeyUint64(uint64(i))
		switch i % 100 {
		case 0:
			require.NoError(t, k.SetLimit(Per(3000, c.Limit.Period)))
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
		d := l.KeyHash(hashOf(k)).Peek(0)
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
				require.Equal(t, limit, other.KeyHash(hashOf(keys[2])).Limit())
			}
			requireSpent(t, other, keys)
			require.Equal(t, 3000, other.KeyHash(hashOf(keys[0])).Limit().Rate, "the limit that was set meanwhile")
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
