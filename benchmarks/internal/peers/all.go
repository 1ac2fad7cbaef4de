package peers

import "slices"

// Absent are the modules of limiters that a reader would look for, and that could not
// be fetched where the measurements are made: the module proxy answers 403 for them.
// Nothing that is said of "libraries" covers them.
var Absent = []string{"github.com/mennanov/limiters", "github.com/clipperhouse/rate", "github.com/webriots/rate"}

// All returns every subject, in the order of the tables.
func All() []Subject {
	return slices.Concat(
		sluiceSubjects(),
		[]Subject{
			goLimiter(),
			throttledSubject(),
			ulule(),
			httprateSubject(),
			failsafeGo(),
			juju(),
			uber(),
		},
		xtimeSubjects(),
		[]Subject{diy(), hashedBuckets()},
	)
}
