package fare

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A full table is searched only when a hold may have ended.
func TestHolds_FullIsNotSearchedInVain(t *testing.T) {
	start := time.Unix(1_795_262_400, 0)
	h := NewHolds[string](3)
	for i := range 3 {
		h.Hold(fmt.Sprint("host", i), start.Add(time.Duration(i+1)*time.Second), start)
	}
	assert.Equal(t, start.Add(time.Second), h.soonest)
	assert.False(t, h.dropEnded(start.Add(time.Second-1)))
	assert.True(t, h.dropEnded(start.Add(time.Second)))
	assert.Equal(t, start.Add(2*time.Second), h.soonest)
	assert.Len(t, h.until, 2)
}

// The table is compared with a plain list under random calls.
func TestHolds_AgreesWithAModel(t *testing.T) {
	start := time.Unix(1_795_262_400, 0)
	r := seeded.Rand(t)
	const size = 4
	h, model, now := NewHolds[string](size), map[string]time.Time{}, start
	full := 0
	for range 20000 {
		now = now.Add(time.Duration(r.IntN(3)))
		host := strconv.Itoa(r.IntN(8))
		if r.IntN(3) == 0 {
			require.Equal(t, max(0, model[host].Sub(now)), h.Remaining(host, now))
			continue
		}
		until := now.Add(time.Duration(1 + r.IntN(20)))
		h.Hold(host, until, now)
		for other, end := range model {
			if !end.After(now) {
				delete(model, other)
			}
		}
		_, known := model[host]
		switch {
		case !known && len(model) == size:
			full++
		case until.After(model[host]):
			model[host] = until
		}
		require.LessOrEqual(t, len(h.until), size)
	}
	assert.Greater(t, full, 100, "the table was hardly ever full")
}
