package rules

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestDenials_Model: random denials and refunds of many keys beside exact bookkeeping.
func TestDenials_Model(t *testing.T) {
	r := seeded.Rand(t)
	var d denials
	d.bound(-1)
	exact := map[uint64]denial{}
	now := int64(0)
	for range 100_000 {
		id, n, window := r.Uint64N(5)<<56+r.Uint64N(5), 1+r.Uint64N(20), uint64(now/1000)
		now += r.Int64N(50)
		k := exact[id]
		if k.until <= now {
			k = denial{}
		}
		if k.window != window {
			k = denial{missing: k.missing + k.counted, window: window, until: k.until}
		}
		if r.IntN(2) == 0 {
			more := denial{missing: r.Uint64N(2) * n, counted: n, window: window, until: now + 2000}
			d.add(id, now, more)
			k.missing, k.counted, k.until = k.missing+more.missing, k.counted+n, more.until
		} else {
			of := min(n, k.missing)
			require.Equal(t, of, d.absorb(id, now, n, window))
			k.missing -= of
			k.counted -= min(k.counted, n-of)
		}
		exact[id] = k
	}
	require.LessOrEqual(t, d.len(), len(exact))
	require.Zero(t, d.unrecorded.Load())
}

// TestDenials_Full: where there is no room for a key, all keys that are not there absorb whatever comes, as long as it would have waited.
func TestDenials_Full(t *testing.T) {
	var d denials
	d.bound(2 * len(d.shards))
	for id := range uint64(3) {
		d.add(id, 10, denial{missing: 5, until: 100})
	}
	d.add(1<<56, 10, denial{missing: 5, until: 100}) // another part
	require.EqualValues(t, 1, d.unrecorded.Load())
	require.Equal(t, 3, d.len())
	require.EqualValues(t, 5, d.absorb(0, 20, 9, 0))
	require.EqualValues(t, 1000, d.absorb(2, 20, 1000, 0), "the one without room")
	require.EqualValues(t, 1000, d.absorb(7, 99, 1000, 0), "any other")
	require.Zero(t, d.absorb(2<<56, 99, 1000, 0), "not of another part")

	d.add(2, 30, denial{missing: 5, until: 120})
	require.EqualValues(t, 1000, d.absorb(2, 119, 1000, 0), "nobody knows what else it was denied")
	require.EqualValues(t, 1000, d.absorb(2, 119, 1000, 0))
	require.Zero(t, d.absorb(7, 100, 1000, 0))
	require.Zero(t, d.absorb(2, 120, 1000, 0))
}

// TestDenials_Room comes back when keys are forgotten, which a full part is searched for once a minute.
func TestDenials_Room(t *testing.T) {
	var d denials
	d.bound(1000 * len(d.shards))
	add := func(from, n uint64, now int64) {
		for id := from; id < from+n; id++ {
			d.add(id, now, denial{missing: 1, until: now + 10})
		}
	}
	add(0, 10_000, 0)
	require.Equal(t, 1000, d.len())
	require.EqualValues(t, 9000, d.unrecorded.Load())
	add(20_000, 1, 11)
	require.Equal(t, 1000, d.len(), "not searched yet")
	add(20_000, 1000, lookPause)
	require.Equal(t, 1000, d.len())
	require.EqualValues(t, 9001, d.unrecorded.Load())
	add(30_000, 1, 2*lookPause)
	require.Equal(t, 1, d.len())
	// Where keys are forgotten as they come, there are at most twice as many as wait.
	for i := range uint64(10_000) {
		add(40_000+i, 1, 3*lookPause+int64(i))
		require.LessOrEqual(t, d.len(), 32)
	}
}

func TestDenials_Huge(t *testing.T) {
	var d denials
	d.bound(-1)
	for range 3 {
		d.add(1, 0, denial{missing: math.MaxUint64 - 1, counted: math.MaxUint64, until: math.MaxInt64})
	}
	require.EqualValues(t, uint64(math.MaxUint64), d.absorb(1, math.MaxInt64-1, math.MaxUint64, 1))
	require.EqualValues(t, 5, d.absorb(1, math.MaxInt64-1, 5, 2))
	require.EqualValues(t, int64(math.MaxInt64), addTime(math.MaxInt64-5, 6))
	require.EqualValues(t, int64(math.MaxInt64), addTime(math.MaxInt64-5, 5))
}

func TestDenials_Restore(t *testing.T) {
	var d denials
	d.bound(300)
	d.add(1, 0, denial{missing: 5, counted: 6, window: 7, until: 100})
	d.add(2, 0, denial{missing: 5, until: 10})
	d.add(9<<56, 0, denial{missing: 5, until: 100})
	require.EqualValues(t, 1, d.unrecorded.Load())
	b := d.appendTo([]byte("before"))[len("before"):]
	require.Len(t, b, 8+2*denialSize)
	again := func(keys int, now int64) *denials {
		var d denials
		d.bound(keys)
		require.NoError(t, d.restore(b, now))
		return &d
	}
	require.EqualValues(t, 5, again(300, 9).absorb(1, 9, 11, 7))
	require.EqualValues(t, 11, again(300, 50).absorb(1, 50, 12, 8))
	require.EqualValues(t, 77, again(300, 9).absorb(3, 9, 77, 8), "there was no room for a key, then")
	require.Zero(t, again(300, 10).absorb(3, 10, 77, 8))
	require.Equal(t, 1, again(300, 50).len()-1)
	require.Zero(t, again(300, 100).len())
	for n := range b {
		if err := (&denials{most: 1}).restore(b[:n], 9); n%denialSize != 8 {
			require.ErrorIs(t, err, sluice.ErrBadSnapshot)
		}
	}
}

// TestDenials_Bounded: in an engine, denied keys beyond MaxKeys give nothing back, and are counted.
func TestDenials_Bounded(t *testing.T) {
	w := newWorld(t, Config{MaxKeys: 256}, oneRule("{unit: minute, requests_per_unit: 10, algorithm: gcra}"))
	for i := range 5000 {
		require.Equal(t, OverLimit, w.ask(withHits(fmt.Sprint("k=", i), 11)).Code)
	}
	s := w.Engine.Stats()
	require.EqualValues(t, 5000, uint64(s.Denied)+s.Unrecorded)
	require.LessOrEqual(t, s.Denied, 256)
	require.Positive(t, s.Denied)
	for i := range 5000 {
		key := fmt.Sprint("k=", i)
		w.ask(withHits(key, 10))
		require.Zero(t, w.ask(refund(key, 11)).Statuses[0].Remaining)
	}
	w.clock.Advance(time.Hour)
	w.ask(withHits("k=a", 10))
	require.EqualValues(t, 4, w.ask(refund("k=a", 4)).Statuses[0].Remaining)
}
