package depth

import "flag"

// waiting is how many tests that mostly wait run at once.
const waiting = "16"

// Waiting is for the TestMain of a package whose parallel tests mostly wait, for servers or for files to
// be looked at again: more of them run at once than there are processors, unless -parallel says how many.
func Waiting() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", waiting) // a number
	}
}
