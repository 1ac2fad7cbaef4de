//go:build !purego

package counter

// Name is the name of the counter in manuals.
const Name = "TSC"

// clocksource is Linux's name for the counter.
const clocksource = "tsc"

//go:noescape
func cpuid(leaf uint32) (eax, edx uint32)

const (
	extendedLeaves = 0x8000_0000
	powerLeaf      = 0x8000_0007
	invariantTSC   = 1 << 8
)

// unsteady says why the counter may change its rate, or stop.
func unsteady() string {
	if last, _ := cpuid(extendedLeaves); last >= powerLeaf {
		if _, edx := cpuid(powerLeaf); edx&invariantTSC != 0 {
			return ""
		}
	}
	return "the processor does not say that its TSC is invariant"
}
