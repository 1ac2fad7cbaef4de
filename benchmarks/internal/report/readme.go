package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// Benchmarks is the section of the library's README that is generated.
const Benchmarks = "benchmarks"

// Readme is the section of the library's README.
func Readme(r results.Results) string {
	v := newView(r)
	var b strings.Builder
	b.WriteString("`Allow`, ns a call, medians, lower is better; with 2 cores, the time in which either of them finishes a call:\n\n")
	b.WriteString(v.speedTable(columns, inReadme).markdown())
	b.WriteString("\n![ns a call, by workload](benchmarks/results/speed.svg)\n\n")
	m := v.Machine
	fmt.Fprintf(&b, "%s, %d cores, %s/%s, %s, %s, commit %s, medians of %d rounds: `cd benchmarks && GOWORK=off go run .`\n",
		m.CPU, m.Cores, m.OS, m.Arch, m.Go, m.Date, m.Commit, m.Rounds)
	if fallen, all := v.fastFallen(); fallen > 0 {
		fmt.Fprintf(&b, "The fast clock was the system clock in %d of %d limiters.\n", fallen, all)
	}
	b.WriteString("All subjects and algorithms, memory, stalls and budgets: [results.txt](benchmarks/results/results.txt); how it is measured: [benchmarks](benchmarks/README.md).\n")
	return b.String()
}

// readmePeers are the fastest of the other libraries and the two that are used most.
var readmePeers = []string{"failsafe-go in xsync", "sethvargo/go-limiter", "x/time/rate in a mutex map"}

// inReadme picks five rows: sluice with both clocks, and readmePeers.
func inReadme(s results.Subject) bool {
	return isOurs(s) && s.Stands() || slices.Contains(readmePeers, s.Name)
}

// Section returns the text between the markers of a section.
func Section(page, name string) (string, error) {
	start, end, err := bounds(page, name)
	if err != nil {
		return "", err
	}
	return page[start:end], nil
}

// Replace puts body between the markers of a section and leaves the rest as it is.
func Replace(page, name, body string) (string, error) {
	start, end, err := bounds(page, name)
	if err != nil {
		return "", err
	}
	return page[:start] + body + page[end:], nil
}

// bounds are where the text between the markers begins and ends.
func bounds(page, name string) (start, end int, err error) {
	begin, finish := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
	if strings.Count(page, begin) != 1 || strings.Count(page, finish) != 1 {
		return 0, 0, fmt.Errorf("no section between one line %q and one %q", strings.TrimSpace(begin), finish)
	}
	start, end = strings.Index(page, begin)+len(begin), strings.Index(page, finish)
	if end < start {
		return 0, 0, fmt.Errorf("%q comes before %q", finish, strings.TrimSpace(begin))
	}
	return start, end, nil
}
