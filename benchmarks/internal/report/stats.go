// Package report turns results into tables, a verdict on every budget, charts and
// the sections of the READMEs. It measures nothing.
package report

import (
	"math"
	"slices"
	"time"
)

// median of no samples is NaN, which is less than nothing and more than nothing:
// no budget is met by it. Of an even number it is the mean of the middle two.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// medianMillis is the median of durations in milliseconds.
func medianMillis(d []time.Duration) float64 {
	ms := make([]float64, len(d))
	for i := range d {
		ms[i] = float64(d[i]) / float64(time.Millisecond)
	}
	return median(ms)
}

// PairedRatio is the median of a[i]/b[i]. Samples of one index were taken near each
// other, so a slow machine slows both, and cancels out; in a
// ratio of medians it does not. Where one has more samples a round than the other, the
// medians of its rounds count.
func PairedRatio(a, b []float64) float64 {
	n := min(len(a), len(b))
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = median(share(a, i, n)) / median(share(b, i, n))
	}
	return median(ratios)
}

// share is the i-th of n equal parts of the samples.
func share(samples []float64, i, n int) []float64 {
	return samples[i*len(samples)/n : (i+1)*len(samples)/n]
}

// spread is how far the middle half of the samples lies apart, as a part of the median.
func spread(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	last := len(s) - 1
	return (s[last-last/4] - s[last/4]) / median(s)
}

// least is the smallest sample: the cost of a part on an undisturbed machine.
func least(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	return slices.Min(samples)
}
