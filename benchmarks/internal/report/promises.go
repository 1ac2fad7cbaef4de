package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/promises"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// Promises is the table of limiters that keep their promises or break them. Versions are by module.
func Promises(all []promises.Result, versions map[string]string) string {
	t := table{head: []string{"limiter", "version", "its promise: most in a span d", "kept", "smallest counterexample"}, align: "lllll"}
	for _, r := range all {
		kept, example := "yes", ""
		if r.Broken > 0 {
			kept = fmt.Sprintf("broken in %d of %d runs", r.Broken, r.Runs)
			c := r.Smallest
			example = fmt.Sprintf("%s, %s: %s within %s, promised %s",
				c.Limit, c.Situation, grouped(int64(c.Admitted)), nanos(int64(c.Span)), grouped(int64(c.Most)))
		}
		t.add(r.Subject, cmp.Or(versions[r.Module], unknown), r.Says+": "+r.Most, kept, example)
	}
	return t.markdown()
}

// PromisesSection is the table with where it comes from.
func PromisesSection(all []promises.Result, m results.Machine) string {
	var b strings.Builder
	b.WriteString(Promises(all, m.Versions))
	runs, units := 0, uint64(0)
	for _, r := range all {
		runs, units = runs+r.Runs, units+r.Admitted
	}
	fmt.Fprintf(&b, "\n%s runs, %s units admitted. %s, %d cores, %s/%s, %s, %s, commit %s, %d rounds.\n",
		grouped(int64(runs)), grouped(int64(units)), m.CPU, m.Cores, m.OS, m.Arch, m.Go, m.Date, m.Commit, m.Rounds)
	return b.String()
}
