package peers

import (
	"maps"
	"sync"

	"github.com/sluice-go/sluice"
)

// sources counts the limiters on a fast clock that have been closed, by the source that their clocks
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

// FastSources returns the sources of fast clocks, as FastClock.Source names them, in how many
// limiters that have been closed.
func FastSources() map[string]int {
	sources.Lock()
	defer sources.Unlock()
	return maps.Clone(sources.limiters)
}
