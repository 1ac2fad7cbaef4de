// Package invariants says whether the engine is built with -tags invariants, to check its invariants. Only tests
// are.
package invariants

import "fmt"

// Require panics unless ok.
func Require(ok bool, format string, args ...any) {
	if !ok {
		panic("sluice: invariant: " + fmt.Sprintf(format, args...))
	}
}
