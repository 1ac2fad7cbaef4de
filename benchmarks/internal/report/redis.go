package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/remote"
)

// RedisRatios is the table of redislimit's REFERENCE.md: the decisions a second of the base, a median, and
// of the other subjects, as medians of the ratios to it in each round.
func RedisRatios(samples []remote.Sample) string {
	subjects := remote.Subjects(remote.Workload{})
	t := table{head: []string{"decisions/s, x " + remote.Base}, align: "l"}
	for _, s := range subjects {
		t.head, t.align = append(t.head, s.Name), t.align+"r"
	}
	for _, w := range remote.Workloads() {
		base := redisRowOf(samples, w.Name, remote.Base)
		row := []string{w.Name}
		for _, s := range subjects {
			of := redisRowOf(samples, w.Name, s.Name)
			switch {
			case len(of) == 0:
				row = append(row, unknown)
			case s.Name == remote.Base:
				row = append(row, figure(median(of.values(perSecond)))+"/s")
			default:
				row = append(row, multiple(PairedRatio(of.values(perSecond), base.values(perSecond))))
			}
		}
		t.add(row...)
	}
	return t.markdown()
}

// multiple writes a ratio with as many digits as tell something.
func multiple(x float64) string {
	if x < 9.95 {
		return fixed(x, 2)
	}
	return figure(x)
}

func perSecond(s remote.Sample) float64 { return s.PerSecond }

// Redis is the table of all that was measured: medians of the rounds, and the medians of the ratios to
// remote.Base in each round.
func Redis(samples []remote.Sample) string {
	var b strings.Builder
	times := " | x " + remote.Base + " | "
	b.WriteString("| | decisions/s" + times + "p50 | p99 | Redis, CPU a decision" + times + "a call of the script" + times +
		"calls of the script a decision | commands a decision | admitted |\n" + "|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, w := range remote.Workloads() {
		fmt.Fprintf(&b, "| **%s** | | | | | | | | | | | |\n", w.Name)
		base := redisRowOf(samples, w.Name, remote.Base)
		for _, s := range remote.Subjects(w) {
			if row := redisRowOf(samples, w.Name, s.Name); len(row) > 0 {
				b.WriteString(row.line(s.Name, base))
			}
		}
	}
	return b.String()
}

// A redisRow is the samples of a subject under a workload.
type redisRow []remote.Sample

func redisRowOf(samples []remote.Sample, workload, subject string) (row redisRow) {
	for _, s := range samples {
		if s.Workload == workload && s.Subject == subject {
			row = append(row, s)
		}
	}
	return row
}

func (row redisRow) values(of func(remote.Sample) float64) []float64 {
	values := make([]float64, len(row))
	for i, s := range row {
		values[i] = of(s)
	}
	return values
}

func (row redisRow) line(name string, base redisRow) string {
	mid := func(of func(remote.Sample) float64) float64 { return median(row.values(of)) }
	ratio := func(of func(remote.Sample) float64) float64 { return PairedRatio(row.values(of), base.values(of)) }
	cpu := func(s remote.Sample) float64 { return float64(s.CPU) }
	inScript := func(s remote.Sample) float64 { return float64(s.Script) }
	script, ofScript := unknown, unknown
	if d := mid(inScript); d > 0 {
		script, ofScript = micros(d), fixed(ratio(inScript), 2)
	}
	return fmt.Sprintf("| %s | %s | %.2f | %s | %s | %s | %.2f | %s | %s | %.2g | %.3g | %.3f |\n", name,
		figure(mid(perSecond)), ratio(perSecond),
		micros(mid(func(s remote.Sample) float64 { return float64(s.P50) })),
		micros(mid(func(s remote.Sample) float64 { return float64(s.P99) })),
		micros(mid(cpu)), ratio(cpu), script, ofScript,
		mid(func(s remote.Sample) float64 { return s.Scripts }), mid(func(s remote.Sample) float64 { return s.Commands }),
		mid(func(s remote.Sample) float64 { return s.Admitted }))
}

// micros writes nanoseconds as microseconds, with three digits.
func micros(ns float64) string {
	switch us := ns / float64(time.Microsecond); {
	case us < 10:
		return fmt.Sprintf("%.2f us", us)
	case us < 100:
		return fmt.Sprintf("%.1f us", us)
	default:
		return figure(us) + " us"
	}
}
