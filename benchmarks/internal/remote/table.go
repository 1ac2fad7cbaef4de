package remote

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Table returns the samples as a table of Markdown: medians of the rounds, and the medians of
// the ratios to Base in each round.
func Table(samples []Sample) string {
	var b strings.Builder
	b.WriteString("| | decisions/s | x " + Base + " | p50 | p99 | Redis, CPU a decision | x " + Base + " | a call of the script | x " + Base + " | calls of the script a decision | commands a decision | admitted |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, w := range Workloads() {
		fmt.Fprintf(&b, "| **%s** | | | | | | | | | | | |\n", w.Name)
		base := of(samples, w.Name, Base)
		for _, s := range Subjects(w) {
			if rows := of(samples, w.Name, s.Name); len(rows) > 0 {
				b.WriteString(line(s.Name, rows, base))
			}
		}
	}
	return b.String()
}

func of(samples []Sample, workload, subject string) (rows []Sample) {
	for _, s := range samples {
		if s.Workload == workload && s.Subject == subject {
			rows = append(rows, s)
		}
	}
	return rows
}

func line(name string, rows, base []Sample) string {
	perSecond := func(s Sample) float64 { return s.PerSecond }
	cpu := func(s Sample) float64 { return float64(s.CPU) }
	inScript := func(s Sample) float64 { return float64(s.Script) }
	script, ofScript := "-", "-"
	if d := median(rows, inScript); d > 0 {
		script, ofScript = micros(d), fmt.Sprintf("%.2f", ratio(rows, base, inScript))
	}
	return fmt.Sprintf("| %s | %s | %.2f | %s | %s | %s | %.2f | %s | %s | %.2g | %.3g | %.3f |\n", name,
		thousands(median(rows, perSecond)), ratio(rows, base, perSecond),
		micros(median(rows, func(s Sample) float64 { return float64(s.P50) })),
		micros(median(rows, func(s Sample) float64 { return float64(s.P99) })),
		micros(median(rows, cpu)), ratio(rows, base, cpu), script, ofScript,
		median(rows, func(s Sample) float64 { return s.Scripts }), median(rows, func(s Sample) float64 { return s.Commands }),
		median(rows, func(s Sample) float64 { return s.Admitted }))
}

func median(rows []Sample, value func(Sample) float64) float64 {
	values := make([]float64, len(rows))
	for i, r := range rows {
		values[i] = value(r)
	}
	return middle(values)
}

// ratio returns the median of the ratios of each round.
func ratio(rows, base []Sample, value func(Sample) float64) float64 {
	ratios := make([]float64, min(len(rows), len(base)))
	for i := range ratios {
		ratios[i] = value(rows[i]) / value(base[i])
	}
	return middle(ratios)
}

func middle(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n == 0 {
		return 0
	}
	return (values[n/2] + values[(n-1)/2]) / 2
}

// micros writes nanoseconds as microseconds, with three digits.
func micros(ns float64) string {
	switch us := ns / float64(time.Microsecond); {
	case us < 10:
		return fmt.Sprintf("%.2f us", us)
	case us < 100:
		return fmt.Sprintf("%.1f us", us)
	default:
		return thousands(us) + " us"
	}
}

// thousands writes a number with commas.
func thousands(n float64) string {
	s := fmt.Sprintf("%.0f", n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
