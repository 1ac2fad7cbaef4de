package sluice

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// look is lookForIdleLocked by now of the table of id.
func look(l *Limiter, id uint64, now int64) (idle int) {
	l.underLock(id, l.tableDepth, func(uint64, uint64) { idle, _ = l.lookForIdleLocked(l.shardOf(id), l.tableOf(id), now) })
	return idle
}

// checkNotes checks that no key is idle before its table has noted, and has all looked at again.
// It returns of how many keys something was noted.
func checkNotes(t *testing.T, l *Limiter, op string) (noted int) {
	t.Helper()
	for i := range l.shards {
		s := &l.shards[i]
		for id, tab := range l.tablesLocked(s) {
			if from := tab.idleFrom.Load(); from > 0 {
				l.eachLocked(s, tab, func(p *policy, e state) {
					noted++
					require.GreaterOrEqual(t, p.idleAt(e), uint64(from), op)
				})
			}
			look(l, id, 0)
		}
	}
	return noted
}

// TestLookForIdle_WhatMakesAKeyIdleSooner is noted, whatever is called, in whatever order.
func TestLookForIdle_WhatMakesAKeyIdleSooner(t *testing.T) {
	var snapshot bytes.Buffer
	ops := []struct {
		name string
		do   func(l *Limiter, k Key, name string, now int64, n int)
	}{
		{"AllowAt", func(_ *Limiter, k Key, _ string, now int64, n int) { k.AllowAt(now, n) }},
		{"AllowAt, again", func(_ *Limiter, k Key, _ string, now int64, n int) { k.AllowAt(now, n) }},
		{"TakeUpTo, at", func(_ *Limiter, k Key, _ string, now int64, n int) { k.takeUpToAt(&Decision{}, now, n) }},
		{"Debit, at", func(_ *Limiter, k Key, _ string, now int64, n int) { k.debitAt(&Decision{}, now, n) }},
		{"TakeAll", func(l *Limiter, k Key, _ string, _ int64, n int) { TakeAll(Charge{k, n}, Charge{l.Key("k0"), 1}) }},
		{"Refund", func(_ *Limiter, k Key, _ string, _ int64, n int) { k.Refund(n) }},
		{"Reset", func(_ *Limiter, k Key, _ string, _ int64, _ int) { k.Reset() }},
		{"Block", func(_ *Limiter, k Key, _ string, _ int64, n int) { k.Block(time.Duration(n) * time.Second) }},
		{"Unblock", func(_ *Limiter, k Key, _ string, _ int64, _ int) { k.Unblock() }},
		{"Reserve and Cancel", func(_ *Limiter, k Key, _ string, _ int64, n int) {
			if r, err := k.Reserve(n, time.Hour); err == nil {
				r.Cancel()
			}
		}},
		{"SetLimit", func(l *Limiter, _ Key, _ string, _ int64, n int) { _ = l.SetLimit(PerMinute(10 * n)) }},
		{"Key.SetLimit", func(l *Limiter, _ Key, name string, _ int64, n int) { _ = l.Key(name).SetLimit(PerMinute(20 * n)) }},
		{"Key.ClearLimit", func(l *Limiter, _ Key, name string, _ int64, _ int) { l.Key(name).ClearLimit() }},
		{"WithLimit", func(_ *Limiter, k Key, _ string, now int64, n int) {
			if k, err := k.WithLimit(PerMinute(15 * n)); err == nil {
				k.AllowAt(now, 1)
			}
		}},
		{"Snapshot", func(l *Limiter, _ Key, _ string, _ int64, _ int) { snapshot.Reset(); _ = l.Snapshot(&snapshot) }},
		{"Restore", func(l *Limiter, _ Key, _ string, _ int64, _ int) {
			l.decided.Store(false)
			_ = l.Restore(bytes.NewReader(snapshot.Bytes()))
		}},
		{"Sweep", func(l *Limiter, _ Key, _ string, _ int64, _ int) { l.Sweep() }},
	}
	for _, penalty := range penalties {
		for name, c := range everyFew {
			t.Run(fmt.Sprintf("layout=%s/count=%v/block=%v", name, penalty.CountDenied, penalty.BlockFor), func(t *testing.T) {
				c.Limit, c.Overflow, c.MaxKeys, c.Shards = PerMinute(30), OverflowDenyNew, 6, 1
				if c.CountDenied = penalty.CountDenied && c.Algorithm.countsDenied(); penalty.BlockFor > 0 {
					c.BlockFor = 20 * time.Second
				}
				c.Hash = HashStable
				l, clock := newFrozen(t, c)
				rng, noted := seeded.Rand(t), 0
				for range 3000 {
					name := fmt.Sprint("k", rng.IntN(8))
					now := clock.Now()
					switch rng.IntN(4) {
					case 0:
						now -= rng.Int64N(int64(2 * time.Minute))
					case 1:
						clock.Advance(time.Duration(rng.Int64N(int64(10 * time.Second))))
					}
					op := ops[rng.IntN(len(ops))]
					op.do(l, l.Key(name), name, now, 1+rng.IntN(3))
					noted += checkNotes(t, l, op.name)
				}
				if isWide(l) { // its tails may be in somebody's hand
					require.Zero(t, noted)
				} else {
					require.Greater(t, noted, 300)
				}
			})
		}
	}
}

// TestLookForIdle_IsNotRepeated before a key can be idle.
func TestLookForIdle_IsNotRepeated(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(100), MaxKeys: 64, Shards: 1, Overflow: OverflowDenyNew})
	looks := 0
	setAlgorithm(l, lookedAt{l.policyOf(0).alg, func() { looks++ }}, nil)
	k := l.Key("k")
	require.True(t, k.AllowN(10)) // idle in 10 s
	now := clock.Now()
	require.Zero(t, look(l, k.id, now))
	require.Equal(t, 1, looks)
	idle := now + int64(10*time.Second)
	require.Zero(t, look(l, k.id, idle-1))
	require.Equal(t, 1, looks)
	require.Equal(t, 1, look(l, k.id, idle))
	require.Equal(t, 2, looks)
}

// TestLookForIdle_AWordInSomebodysHand tells nothing of when its key is idle.
func TestLookForIdle_AWordInSomebodysHand(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), MaxKeys: 64, Shards: 1, Overflow: OverflowDenyNew})
	k := l.Key("k")
	require.True(t, k.Allow())
	e := l.locate(k.id).slot
	word := e.word.Swap(held)
	require.Zero(t, look(l, k.id, clock.Now()))
	e.word.Store(word)
	require.Equal(t, 1, look(l, k.id, clock.Now()+int64(time.Second)))
}

// lookedAt calls also after a word has been looked at.
type lookedAt struct {
	algorithm
	also func()
}

func (a lookedAt) idleAt(word uint64) uint64 {
	at := a.algorithm.idleAt(word)
	a.also()
	return at
}

// lookedAtWide is lookedAt for a wide algorithm.
type lookedAtWide struct {
	wideAlgorithm
	also func()
}

func (a lookedAtWide) idleAt(key state) uint64 {
	at := a.wideAlgorithm.idleAt(key)
	a.also()
	return at
}

// TestLookForIdle_ARefundMeanwhile: the look has passed the key's word, and must not note what that was.
func TestLookForIdle_ARefundMeanwhile(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(100), MaxKeys: 64, Shards: 1, Overflow: OverflowDenyNew})
	k := l.Key("k")
	require.True(t, k.AllowN(100))
	plain := l.policyOf(0).alg
	setAlgorithm(l, lookedAt{plain, func() {
		setAlgorithm(l, plain, nil)
		k.Refund(99)
	}}, nil)
	require.Zero(t, look(l, k.id, clock.Now()))
	require.Equal(t, 1, look(l, k.id, clock.Now()+int64(time.Second)))
}

// TestLookForIdle_ABlockWithoutEnd is never looked at again, until it is ended.
func TestLookForIdle_ABlockWithoutEnd(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), MaxKeys: 64, Shards: 1, Overflow: OverflowDenyNew})
	k := l.Key("k")
	require.True(t, k.Block(math.MaxInt64))
	require.Zero(t, look(l, k.id, math.MaxInt64-1))
	require.Equal(t, int64(math.MaxInt64), l.tableOf(k.id).idleFrom.Load())
	k.Unblock()
	require.Equal(t, 1, look(l, k.id, clock.Now()))
}

// TestLookForIdle_NothingIsNoted under OverflowEvictSoonest, where nobody says what makes a key idle sooner.
func TestLookForIdle_NothingIsNoted(t *testing.T) {
	l, clock := newFrozen(t, Config{Limit: PerSecond(1), MaxKeys: 64, Shards: 1})
	k := l.Key("k")
	require.True(t, k.Allow())
	require.Zero(t, look(l, k.id, clock.Now()))
	k.Reset()
	require.Equal(t, 1, look(l, k.id, clock.Now()))
}
