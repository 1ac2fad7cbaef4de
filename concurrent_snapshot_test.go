package sluice

import (
	"bytes"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSnapshot_WhileDecisionsRun: with the clock frozen, so that nothing comes back, every
// snapshot has of each key what had been charged at some instant while it was taken: no
// less than before it began, no more than when it had ended. Meanwhile keys are added,
// swept, charged together, and given other limits.
func TestSnapshot_WhileDecisionsRun(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		const hot, callers = 4, 2
		keys := []string{"hot0", "hot1", "hot2", "hot3"}
		c.Hash, c.Clock, c.Shards = HashStable, NewManualClock(start), 2
		l := mustNew(t, c)
		var done atomic.Bool
		var begun, charged [hot]atomic.Int64
		churn := goDo(1, func(int) { upset(t, l, &done) })
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
		done.Store(true)
		churn()
		other := restoredFrom(t, c, snapshotOf(t, l))
		for k, key := range keys {
			require.Equal(t, int(charged[k].Load()), spentOf(other, key), "%s", key)
		}
	})
}

// assertNoError reports an error where the test has to go on to wait for its goroutines.
func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// upset changes all around the hot keys, and their limits, but nothing that they can
// count.
func upset(t *testing.T, l *Limiter, done *atomic.Bool) {
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
		if i%8 == 0 {
			assertNoError(t, l.SetKeyLimit("hot1", other))
			assertNoError(t, l.SetKeyLimit("hot3", limit))
			l.ClearKeyLimit("hot1")
			l.ClearKeyLimit("hot3")
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
		var done atomic.Bool
		var charged [keys]atomic.Int64
		wait := goDo(2, func(g int) {
			for i := g; !done.Load(); i++ {
				k := i * 7 % (keys / 2)
				if charged[k].Load() < 50 && other.KeyUint64(uint64(k)).Allow() {
					charged[k].Add(1)
				}
				runtime.Gosched()
			}
		})
		err := other.Restore(bytes.NewReader(data))
		done.Store(true)
		wait()
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
		h, ok := l.tryHold(k.id)
		require.True(t, ok)
		wait := goDo(1, func(int) {
			for range 100 {
				runtime.Gosched()
			}
			h.release(h.word)
		})
		data := snapshotOf(t, l)
		wait()
		require.Equal(t, 7, spentOf(restoredFrom(t, c, data), "k"))
		require.Equal(t, 7, spentOf(l, "k"), "and it can be charged again")
	})
}
