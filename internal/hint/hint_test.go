package hint_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/hint"
)

func TestHint_IsCutAndNeverEarlierOtherwise(t *testing.T) {
	most := func(n uint64) uint64 { return n - 1 }
	least := func(uint64) uint64 { return 0 }
	tests := []struct {
		name       string
		most       time.Duration
		jitter     time.Duration
		draw       func(uint64) uint64
		wait, want time.Duration
	}{
		{"zero value", 0, 0, nil, 24 * time.Hour, 24 * time.Hour},
		{"below the bound", time.Minute, 0, nil, time.Minute - 1, time.Minute - 1},
		{"at the bound", time.Minute, 0, nil, time.Minute, time.Minute},
		{"above the bound", time.Minute, 0, nil, time.Minute + 1, time.Minute},
		{"no jitter drawn", time.Minute, 9 * time.Second, least, 30 * time.Second, 30 * time.Second},
		{"all jitter drawn", time.Minute, 9 * time.Second, most, 30*time.Second + 1, 39*time.Second + 1},
		{"jitter of what is cut", time.Minute, 9 * time.Second, most, 24 * time.Hour, 69 * time.Second},
		{"never", time.Minute, 9 * time.Second, most, sluice.Never, sluice.Never},
		{"as good as never", 0, 9 * time.Second, most, sluice.Never - 3, sluice.Never - 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := hint.Hint{Most: tt.most, Jitter: tt.jitter, Unit: time.Second, Draw: tt.draw}
			assert.Equal(t, tt.want, h.Of(tt.wait))
		})
	}
}

func TestHint_JitterIsInWholeUnitsAndReachesBothEnds(t *testing.T) {
	h := hint.Hint{Jitter: 3 * time.Millisecond, Unit: time.Millisecond}
	seen := map[time.Duration]bool{}
	for range 400 { // each of the four is missed with a chance of 0.75^400
		seen[h.Of(time.Second)-time.Second] = true
	}
	assert.Equal(t, map[time.Duration]bool{0: true, time.Millisecond: true, 2 * time.Millisecond: true, 3 * time.Millisecond: true}, seen)
}

func TestHint_Check(t *testing.T) {
	for _, h := range []hint.Hint{{}, {Most: time.Second, Jitter: time.Hour}, {Most: 365 * 24 * time.Hour, Jitter: time.Second}} {
		h.Unit = time.Second
		assert.Empty(t, h.CheckMost())
		assert.Empty(t, h.CheckJitter())
	}
	for _, h := range []hint.Hint{{Most: -1, Jitter: -1}, {Most: 1500 * time.Millisecond, Jitter: 1500 * time.Millisecond}, {Most: 365*24*time.Hour + time.Second, Jitter: time.Hour + time.Second}} {
		h.Unit = time.Second
		assert.Contains(t, h.CheckMost(), h.Most.String())
		assert.Contains(t, h.CheckJitter(), h.Jitter.String()+" cannot be added; want whole seconds")
	}
}
