package service

import (
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
)

// loadRoom is how much memory a load of rules takes before the garbage collector runs: enough for
// some 15,000 rules.
const loadRoom = 64 << 20

// collecting is held while the garbage collector is put off, since that affects the whole process.
var collecting sync.Mutex

// putOffCollecting calls f while the garbage collector waits until the heap has grown by room. Loading
// rules makes forty times their size in garbage within a tenth of a second. The collector would run
// several times meanwhile, on a quarter of all processors, and delay calls: of two
// processors it takes one, for up to half of the time for which it has run. After f it runs
// once, and most of the garbage is free then. A memory limit, GOMEMLIMIT, still holds meanwhile. If GOGC is set,
// only GOGC decides.
func putOffCollecting(room uint64, f func()) {
	collecting.Lock()
	defer collecting.Unlock()
	now := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(now)
	percent, live := now[0].Value.Uint64(), max(now[1].Value.Uint64(), 1<<20)
	if percent <= maxPercent && os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(int(percent + room*100/live)))
	}
	f()
}

// maxPercent is above any real percentage: the collector may be off.
const maxPercent = 1 << 20
