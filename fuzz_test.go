package sluice

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/traces"
)

// FuzzReservations decodes a byte string into reservations and what becomes of them, and replays them
// against the exact model: each choice of the tracer takes one byte.
func FuzzReservations(f *testing.F) {
	for i := range byte(6) {
		f.Add([]byte{i % 3, 200, i * 40, i * 20, 255, 0, 9, 9, 0, 90, 9, 30, 200, 100, 0, 250, 100, 40, 110, 130, 255, 80, 9, 150, 7, 60, 230, 99})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 1024 {
			return
		}
		src := traces.NewBytes(data[1:])
		disturbed, evicts := data[0]%3 == 1, data[0]%3 == 2
		tr := newReservationTracer(t, rand.New(src), disturbed, evicts)
		for src.Left() {
			tr.step(disturbed)
		}
		if !disturbed && !evicts {
			tr.checkSpans()
		}
	})
}

// FuzzSchedule checks the 64-bit grid arithmetic against math/big.
func FuzzSchedule(f *testing.F) {
	f.Add(3, int64(time.Second), 5, int64(1_790_000_000_123_456_789))
	f.Add(1, int64(math.MaxInt64), 1, int64(math.MaxInt64))
	f.Add(7, int64(2), 1, int64(math.MaxInt64))
	f.Add(math.MaxInt32, int64(math.MaxInt32)/2, 9, int64(1)<<62)
	f.Fuzz(func(t *testing.T, rate int, period int64, burst int, now int64) {
		if rate <= 0 || period <= 0 || burst <= 0 || now < 0 {
			return
		}
		s, err := newSchedule(Limit{Rate: rate, Period: time.Duration(period), Burst: burst})
		if err == nil {
			checkSchedule(t, &s, int64(rate), period, now)
		}
	})
}

// FuzzWindow checks windows against their definition.
func FuzzWindow(f *testing.F) {
	f.Add(int64(time.Minute), int64(0), int64(1_790_000_000_123_456_789))
	f.Add(int64(day), 15*int64(time.Hour), int64(1_790_000_000_123_456_789))
	f.Add(int64(1), int64(0), int64(math.MaxInt64))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64-1), int64(math.MaxInt64))
	f.Add(int64(math.MaxInt64), int64(1), int64(0))
	f.Fuzz(func(t *testing.T, period, offset, now int64) {
		if period > 0 && 0 <= offset && offset < period && now >= 0 {
			checkWindow(t, period, offset, now)
		}
	})
}

// checkSchedule compares tick and earliest at now with their definitions.
func checkSchedule(tb testing.TB, s *schedule, rate, period, now int64) {
	tb.Helper()
	// g(t) = floor(t*R*c/P)
	unit := (period-1)/rate + 1
	num := new(big.Int).Mul(big.NewInt(rate), big.NewInt(unit))
	tick := func(t int64) *big.Int {
		x := new(big.Int).Mul(big.NewInt(t), num)
		return x.Div(x, big.NewInt(period))
	}
	want, got := tick(now), s.tick(now)
	if now <= s.end && (!want.IsUint64() || want.Uint64() != got) {
		tb.Fatalf("tick(%d) = %d, want %v (rate %d period %d)", now, got, want, rate, period)
	}
	if got > math.MaxInt64 || now > s.end && got != s.tick(s.end) {
		tb.Fatalf("tick(%d) = %d goes beyond the end (rate %d period %d)", now, got, rate, period)
	}
	at := s.earliest(got)
	if at > uint64(min(now, s.end)) || at > 0 && s.tick(int64(at)-1) >= got || s.tick(int64(at)) < got {
		tb.Fatalf("earliest(%d) = %d is not the first (rate %d period %d)", got, at, rate, period)
	}
}

// checkWindow compares at, since and start with their definition: number is that of the
// window of 0, counted up, and starts are exact.
func checkWindow(tb testing.TB, period, offset, now int64) {
	w, ok := newWindow(time.Duration(period), time.Duration(offset), 64, 1, 1)
	if !ok {
		return // all of time is one window
	}
	// Div rounds down, Mod is not negative.
	since := func(t int64) *big.Int { return new(big.Int).Sub(big.NewInt(t), big.NewInt(offset)) }
	index := func(t int64) *big.Int { return new(big.Int).Div(since(t), big.NewInt(period)) }
	wantNumber := new(big.Int).Sub(index(now), index(0)).Uint64()
	wantElapsed := new(big.Int).Mod(since(now), big.NewInt(period)).Uint64()
	number, elapsed := w.at(now)
	if number < w.last && (number != wantNumber || elapsed != wantElapsed) {
		tb.Fatalf("at(%d) = %d, %d with period %d offset %d", now, number, elapsed, period, offset)
	}
	if number > w.last || number == w.last && elapsed != 0 {
		tb.Fatalf("at(%d) = %d, %d beyond the last window %d with period %d", now, number, elapsed, w.last, period)
	}
	for _, n := range []uint64{number, number + 1, number + 2, number - 1, 0, w.last, w.last - 1} {
		got, in := w.since(n, now)
		if in != (n == number && n < w.near) || in && got != elapsed {
			tb.Fatalf("since(%d, %d) = %d, %v with period %d offset %d", n, now, got, in, period, offset)
		}
	}
	if number >= w.last {
		return
	}
	wantStart := max(0, now-int64(elapsed)) // elapsed may begin before 1970
	if start := w.start(number); start != uint64(wantStart) {
		tb.Fatalf("start(%d) = %d at %d with period %d offset %d", number, start, now, period, offset)
	}
	next := new(big.Int).Add(big.NewInt(now-int64(elapsed)), big.NewInt(period))
	if start := w.start(number + 1); next.IsInt64() && start != next.Uint64() || !next.IsInt64() && start <= math.MaxInt64 {
		tb.Fatalf("start(%d) = %d, after the window of %d, with period %d offset %d", number+1, start, now, period, offset)
	}
}

// FuzzRestore: whatever the input, Restore changes nothing, or what it has taken over is
// within its range and stays there. Half of the inputs get a checksum that is right, and
// so get past it.
func FuzzRestore(f *testing.F) {
	configs := snapshotConfigs()
	names := slices.Sorted(maps.Keys(configs))
	for i, name := range names {
		l := storied(f, configs[name], NewManualClock(start))
		data := snapshotOf(f, l)
		f.Add(byte(i), data, true)
		f.Add(byte(i), data, false)
		require.NoError(f, l.SetLimit(Per(3, configs[name].Limit.Period)))
		require.NoError(f, l.KeyHash(1).SetLimit(Per(1000, time.Hour)))
		l.KeyHash(1).Take(700)
		f.Add(byte(i), snapshotOf(f, l), true)
	}
	f.Fuzz(func(t *testing.T, layout byte, data []byte, seal bool) {
		if len(data) > 1<<13 {
			return
		}
		if seal && len(data) >= 8 {
			data = sealed(data)
		}
		c := configs[names[int(layout)%len(names)]]
		c.MaxKeys, c.Shards = 64, 2
		clock := NewManualClock(start)
		c.Clock = clock
		checkRestore(t, c, clock, data)
	})
}

// checkRestore restores data and then makes every kind of call.
func checkRestore(t *testing.T, c Config, clock *ManualClock, data []byte) {
	t.Helper()
	l := mustNew(t, c)
	if err := l.Restore(bytes.NewReader(data)); err != nil {
		require.ErrorIs(t, err, ErrBadSnapshot)
		require.Zero(t, l.Len())
		require.Empty(t, snapshot(l))
		return
	}
	keys := idsOf(l)
	keys = append(keys[:min(6, len(keys))], l.Key("new").id)
	checkWords(t, l)
	for i, step := range []func(k Key){
		func(k Key) { k.Take(2) },
		func(k Key) { k.Refund(1) },
		func(k Key) { clock.Advance(time.Second); k.AllowN(1) },
		func(k Key) {
			if r, err := k.Reserve(1, time.Hour); err == nil {
				r.Settle(2)
			}
		},
		func(k Key) { k.AllowAt(clock.Now()-int64(time.Minute), 1); k.AllowAt(math.MaxInt64, 1) },
		func(k Key) { TakeAll(Charge{k, 1}, Charge{l.Key("new"), 1}) },
		func(Key) { clock.Advance(c.Limit.Period); l.Sweep() },
		func(Key) { require.NoError(t, l.SetLimit(Per(3, c.Limit.Period))) },
		func(k Key) { require.NoError(t, k.SetLimit(Per(9, time.Hour))); k.Take(1) },
		func(Key) { require.NoError(t, l.SetLimit(DenyAll)); require.NoError(t, l.SetLimit(c.Limit)) },
		func(k Key) { k.ClearLimit(); k.Take(1) },
		func(k Key) { k.Block(time.Hour); k.Take(1) },
		func(k Key) { k.Unblock(); k.Reset() },
	} {
		for _, id := range keys {
			k := l.KeyHash(id)
			step(k)
			d := k.Peek(1)
			if d.RetryAfter < 0 || d.ResetAfter < 0 || d.Remaining < 0 || d.Remaining > d.Limit || d.Allowed != (d.RetryAfter == 0) {
				t.Fatalf("step %d leaves key %x with %+v", i, id, d)
			}
		}
		checkWords(t, l)
		if i%4 == 0 {
			again := mustNew(t, l.Config())
			require.NoError(t, again.Restore(bytes.NewReader(snapshotOf(t, l))), "it is not read by who has written it")
		}
	}
}

// idsOf returns the tracked ids.
func idsOf(l *Limiter) (ids []uint64) {
	for _, t := range tablesOf(l) {
		for j := range t.slots {
			if id := t.slots[j].id.Load(); id != 0 {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// checkWords demands that no word has left its range: below reserved, or blocked, and not
// locked, held or moved.
func checkWords(t *testing.T, l *Limiter) {
	t.Helper()
	for i := range l.shards {
		s := &l.shards[i]
		check := func(p *policy, e state) {
			switch {
			case e.word >= elsewhere, p.wide != nil && e.word >= locked:
				t.Fatalf("word %x", e.word)
			case !p.wordless() && !p.sound(e):
				t.Fatalf("word %x with tail %v", e.word, e.tail)
			}
		}
		for _, tab := range l.tablesLocked(s) {
			l.eachLocked(s, tab, check)
		}
		l.cellsOf(i, func(c *cell) {
			if c.word.Load() != elsewhere {
				check(c.policy, c.state(c.word.Load()))
			}
		})
	}
}

// hostile returns a snapshot of c with one key, whose word and tail are those given.
func hostile(tb testing.TB, c Config, words ...uint64) []byte {
	tb.Helper()
	data := snapshotOf(tb, mustNew(tb, c))
	data = data[:len(data)-4-1-8]
	data = binary.LittleEndian.AppendUint32(data, 1)
	for _, w := range append([]uint64{1}, words...) {
		data = binary.LittleEndian.AppendUint64(data, w)
	}
	return sealed(append(data, make([]byte, 4+1+8)...))
}

// TestRestore_RefusesWhatNoLimiterWrites, though its checksum is right: arithmetic on it
// would give waits that are negative, or windows without end.
func TestRestore_RefusesWhatNoLimiterWrites(t *testing.T) {
	now := uint64(start.UnixNano())
	log := Config{Algorithm: SlidingLog, Limit: PerMinute(3)}
	first := Config{Algorithm: FixedWindowFirstCharge, Limit: PerMinute(3)}
	wide := Config{Algorithm: SlidingWindow, Limit: PerSecond(100_000)}
	gcra := Config{Limit: PerMinute(3)}
	const blockedWide = blockedTail | 1<<40
	for name, r := range map[string]struct {
		c     Config
		words []uint64
	}{
		"elsewhere":                   {gcra, []uint64{elsewhere}},
		"held":                        {gcra, []uint64{held}},
		"moved":                       {gcra, []uint64{moved}},
		"locked":                      {first, []uint64{locked | 1<<20, now}},
		"window without end":          {first, []uint64{1 << 20, math.MaxUint64}},
		"window beyond time":          {first, []uint64{1<<20 | 1, 1 << 63}},
		"previous beyond range":       {wide, []uint64{1 << 30, 1 << 63}},
		"blocked until never was":     {first, []uint64{blockedWide, 0}},
		"blocked until 0":             {gcra, []uint64{reserved}},
		"wide: blocked until 0":       {wide, []uint64{blockedWide, blockMark}},
		"first: blocked until 0":      {first, []uint64{blockedWide, blockMark}},
		"log: blocked until 0":        {log, []uint64{blockedTail, blockMark, 0, 0}},
		"wide: blocked with a count":  {wide, []uint64{blockedTail | 5, blockMark | now}},
		"first: blocked with a count": {first, []uint64{blockedTail | 5, blockMark | now}},
		"log: blocked with units":     {log, []uint64{blockedTail | 5, blockMark | now, 1 << 63, 1 << 63}},
		"log: falling":                {log, []uint64{3, now, now - 1, now}},
		"log: hole":                   {log, []uint64{3, now, refunded, now}},
		"log: beyond time":            {log, []uint64{3, now, now, 1 << 63}},
		"log: too much written":       {log, []uint64{6, now, now, now}},
	} {
		r.c.Hash, r.c.Clock, r.c.Shards = HashStable, NewManualClock(start), 1
		l := mustNew(t, r.c)
		p := l.current.Load()
		err := l.Restore(bytes.NewReader(hostile(t, r.c, r.words...)))
		require.ErrorIs(t, err, ErrBadSnapshot, name)
		requireUntouched(t, l, p, err)
		require.ErrorContains(t, err, "no limiter has written", name)
	}
	gcra.Hash, gcra.Clock, gcra.Shards = HashStable, NewManualClock(start), 1
	data := hostile(t, gcra, now<<1)
	clear(data[len(data)-8-1-4-16:][:8]) // id 0 is no key: it would be found in every empty slot
	require.ErrorContains(t, mustNew(t, gcra).Restore(bytes.NewReader(sealed(data))), "no limiter has written")
	// Words that limiters write at the ends of their ranges are fine.
	for _, r := range []struct {
		c     Config
		words []uint64
	}{
		{gcra, []uint64{elsewhere - 1}}, {gcra, []uint64{reserved - 1}}, {gcra, []uint64{blockedWord(now + 1)}},
		{first, []uint64{1 << 20, math.MaxInt64}}, {first, []uint64{blockedWide, math.MaxUint64}},
		{log, []uint64{5, now, now + 1, now - 1}}, {log, []uint64{3, refunded, now, now}}, {log, []uint64{1, now, 9, 1 << 63}},
	} {
		r.c.Hash, r.c.Shards = HashStable, 1
		clock := NewManualClock(start)
		r.c.Clock = clock
		require.Equal(t, 1, restoredFrom(t, r.c, hostile(t, r.c, r.words...)).Len(), "%x", r.words)
		checkRestore(t, r.c, clock, hostile(t, r.c, r.words...))
	}
}

// TestRestore_RefusesAKeyTwice: each time its shard would be rebuilt, half a minute for
// 20,000 keys.
func TestRestore_RefusesAKeyTwice(t *testing.T) {
	c := Config{Limit: PerMinute(3), Hash: HashStable, Clock: NewManualClock(start), Shards: 1}
	one := hostile(t, c, uint64(start.UnixNano())<<1)
	state := one[len(one)-8-1-4-16 : len(one)-8-1-4]
	two := append(bytes.Clone(one[:len(one)-8-1-4]), 1, 0, 0, 0)
	two = sealed(append(append(two, state...), make([]byte, 4+1+8)...))
	l := mustNew(t, c)
	require.ErrorContains(t, l.Restore(bytes.NewReader(two)), "a key twice")
	section := one[8 : len(one)-8-1] // or in two sections
	two = append(append(bytes.Clone(one[:8]), section...), section...)
	two = sealed(append(two, make([]byte, 1+8)...))
	require.ErrorContains(t, l.Restore(io.Reader(bytes.NewReader(two))), "a key twice")
	require.Zero(t, l.Len())
}

// TestRestore_RefusesHeadersOfNoLimit, with a checksum that is right: nothing panics, and
// no policy is made of them.
func TestRestore_RefusesHeadersOfNoLimit(t *testing.T) {
	numbers := []uint64{0, 31, 1 << 31, math.MaxInt64}
	if !testing.Short() {
		numbers = append(numbers, 1, 2, 1<<20, 1<<31-1, 1<<62, 1<<63, math.MaxUint64)
	}
	for _, c := range snapshotConfigs() {
		c.Clock, c.Shards = NewManualClock(start), 1
		data := snapshotOf(t, storied(t, c, NewManualClock(start)))
		for field := range 6 { // Rate, Period, Burst, Soft, Offset, Room
			at := 8 + 1 + 1 + 8*field
			for _, n := range numbers {
				changed := bytes.Clone(data)
				binary.LittleEndian.PutUint64(changed[at:], n)
				checkRestore(t, c, NewManualClock(start), sealed(changed))
			}
		}
		changed := bytes.Clone(data)
		binary.LittleEndian.PutUint64(changed[8+1+1+8*5:], 0) // Room, less than the burst
		require.ErrorIs(t, mustNew(t, c).Restore(bytes.NewReader(sealed(changed))), ErrBadSnapshot)
		changed = bytes.Clone(data)
		changed[8+1+1+8*6]++ // TailLen
		err := mustNew(t, c).Restore(bytes.NewReader(sealed(changed)))
		require.ErrorIs(t, err, ErrBadSnapshot)
	}
}
