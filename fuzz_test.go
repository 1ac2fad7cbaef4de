package sluice

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/traces"
)

// FuzzReceipts decodes a byte string into reservations and what becomes of them, and replays them
// against the exact model: each choice of the tracer takes one byte.
func FuzzReceipts(f *testing.F) {
	for i := range byte(6) {
		f.Add([]byte{i % 3, 200, i * 40, i * 20, 255, 0, 9, 9, 0, 90, 9, 30, 200, 100, 0, 250, 100, 40, 110, 130, 255, 80, 9, 150, 7, 60, 230, 99})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 1024 {
			return
		}
		src := traces.NewBytes(data[1:])
		disturbed, evicts := data[0]%3 == 1, data[0]%3 == 2
		tr := newReceiptTracer(t, rand.New(src), disturbed, evicts)
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

// FuzzParseLimit: what is accepted survives the round trip through String, and
// nothing panics.
func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"100/s", "20/m burst 5", "1000/24h", "7/1m30s burst 9", "unlimited", "0/s", "1/1ns", "-1/s", "1/s burst", "9/µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLimit(s)
		if err != nil {
			return
		}
		again, err := ParseLimit(l.String())
		if err != nil || again != l {
			t.Fatalf("ParseLimit(%q) = %#v; its String %q gives %#v, %v", s, l, l.String(), again, err)
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

// checkWindow compares at and start with their definition: number is that of the
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
