//go:build !purego

package counter

import "runtime"

// Name is the name of the counter in manuals.
const Name = "CNTVCT_EL0"

// clocksource is Linux's name for the counter.
const clocksource = "arch_sys_counter"

func frequency() uint64

// unsteady says why the counter cannot be relied on. The architecture says that it has one
// rate and never stops; not every system lets programs read it.
func unsteady() string {
	switch runtime.GOOS {
	case "linux", "darwin":
	default:
		return runtime.GOOS + " may keep programs from reading CNTVCT_EL0"
	}
	if frequency() == 0 {
		return "CNTFRQ_EL0 is 0: nobody has set the counter up"
	}
	return ""
}
