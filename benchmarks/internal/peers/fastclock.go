package peers

import (
	"maps"
	"sync"

	"github.com/sluice-go/sluice"
)

// sources counts the limiters on a fast clock that have been closed, by what their clocks
// read in the end: a clock can become the system clock at any time.
var sources = struct {
	sync.Mutex
	limiters map[string]int
}{limiters: map[string]int{}}

func noteSource(c *sluice.FastClock) {
	sources.Lock()
	defer sources.Unlock()
	sources.limiters[c.Source()]++
}

// FastSources says what fast clocks have read, as FastClock.Source says it, in how many
// limiters that have been closed.
func FastSources() map[string]int {
	sources.Lock()
	defer sources.Unlock()
	return maps.Clone(sources.limiters)
}
