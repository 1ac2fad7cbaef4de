package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice"
)

// readings hands out the times it has, in order.
type readings struct {
	sluice.Clock
	times []int64
}

func (r *readings) Now() int64 {
	now := r.times[0]
	r.times = r.times[1:]
	return now
}

func TestWatch_TellsTheFarthest(t *testing.T) {
	w := &watch{name: "w", clock: &readings{times: []int64{95, 205, 203, 390}}, system: &readings{times: []int64{100, 101, 200, 201, 202, 203, 300, 310}}}
	for range 4 {
		w.read()
	}
	assert.Equal(t, "w: 4 readings, at most 5 ns below the system clock and 80 ns above, back by 2 ns", w.String())
	assert.False(t, w.off())
	for _, now := range []int64{1000, -1000} {
		w := &watch{clock: &readings{times: []int64{now}}, system: &readings{times: []int64{0, 0}}}
		w.read()
		assert.False(t, w.off())
	}
	for _, now := range []int64{1001, -1001} {
		w := &watch{clock: &readings{times: []int64{now}}, system: &readings{times: []int64{0, 0}}}
		w.read()
		assert.True(t, w.off())
	}
}
