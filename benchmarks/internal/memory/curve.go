package memory

import (
	"fmt"
	"math"
	"slices"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// CurveConfig is how many keys the memory is measured at.
type CurveConfig struct {
	From, To int   // of sluice's algorithms
	PeersTo  int   // of peers, which make an object a key or several
	MaxKeys  []int // of limiters that are filled up to it
}

// FullCurve has the settings of the published curve. For ten million objects the
// collections alone would take longer than all of sluice's curves.
var FullCurve = CurveConfig{From: 1000, To: 1e7, PeersTo: 1e6, MaxKeys: []int{1e6, 1 << 20}}

// step is how far the sizes of the curve are apart.
const step = 1.1

// leanest are the three lightest of the other libraries at a million keys.
var leanest = []string{"go-chi/httprate", "throttled", "sethvargo/go-limiter"}

// Curve weighs sluice's algorithms, and the leanest peers, at every size from
// From to To: each is one limiter that is filled on and on. It also weighs sluice's
// algorithms when they are full: they have been shown MaxKeys keys, and their weight
// is divided by the keys that they track.
func Curve(subjects []peers.Subject, c CurveConfig, log func(format string, args ...any)) (curves []results.Curve, full []results.Memory, err error) {
	known := workload.Distinct(max(c.To, c.PeersTo))
	for _, s := range subjects {
		to := c.To
		switch {
		case s.Kind == peers.Ours && s.Clock == peers.System:
		case slices.Contains(leanest, s.Name):
			to = c.PeersTo
		default:
			continue
		}
		curve, err := weigh(s, known, sizes(c.From, to))
		if err != nil {
			return nil, nil, fmt.Errorf("memory curve of %s: %w", s.Name, err)
		}
		log("curve: %s: %.1f B a key at %d keys", s.Name, curve.Bytes[len(curve.Bytes)-1], to)
		curves = append(curves, curve)
		if s.Kind != peers.Ours {
			continue
		}
		for _, maxKeys := range c.MaxKeys {
			row, err := weighFull(s, known, maxKeys)
			if err != nil {
				return nil, nil, fmt.Errorf("memory of %s, full: %w", s.Name, err)
			}
			full = append(full, row)
		}
	}
	return curves, full, nil
}

// sizes are from, to, and those between that are steps apart.
func sizes(from, to int) []int {
	var all []int
	for x := float64(from); int(math.Round(x)) < to; x *= step {
		all = append(all, int(math.Round(x)))
	}
	return append(all, to)
}

// weigh fills one limiter and stops at each of the sizes.
func weigh(s peers.Subject, known workload.Sequence, sizes []int) (results.Curve, error) {
	curve := results.Curve{Subject: s.Name, Keys: sizes}
	w, err := newScale(s, workload.Once)
	if err != nil {
		return curve, err
	}
	defer w.Close()
	for _, size := range sizes {
		w.fill(known, size)
		bytes, _ := w.weigh(size)
		if err := w.checkKeys(); err != nil {
			return curve, err
		}
		curve.Bytes = append(curve.Bytes, bytes)
	}
	return curve, nil
}

// weighFull weighs a limiter that has been shown as many keys as it may hold. A bound
// that is kept shard by shard is reached in some of them first.
func weighFull(s peers.Subject, known workload.Sequence, maxKeys int) (results.Memory, error) {
	row := results.Memory{Subject: s.Name, MaxKeys: maxKeys}
	o := workload.Once
	o.MaxKeys = maxKeys
	w, err := newScale(s, o)
	if err != nil {
		return row, err
	}
	defer w.Close()
	w.fill(known, maxKeys)
	row.Keys = w.Keys()
	if row.Keys < maxKeys/4*3 || row.Keys > maxKeys {
		return row, fmt.Errorf("it holds %d keys, want %d to %d", row.Keys, maxKeys/4*3, maxKeys)
	}
	row.BytesPerKey, row.ObjectsPerKey = w.weigh(row.Keys)
	return row, nil
}
