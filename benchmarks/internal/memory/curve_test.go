package memory

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

func TestSizes_AreAStepApartAndIncludeTheEnds(t *testing.T) {
	assert.Equal(t, []int{1000, 1100, 1210, 1331, 1400}, sizes(1000, 1400))
	assert.Equal(t, []int{1000}, sizes(1000, 1000))
	all := sizes(1000, 1e7)
	assert.Equal(t, 10_000_000, all[len(all)-1])
	assert.Len(t, all, 98)
	for i := 1; i < len(all)-1; i++ {
		assert.InDelta(t, 1.1, float64(all[i])/float64(all[i-1]), 0.001)
	}
}

// hoarder keeps so many bytes for every key up to a bound.
type hoarder struct {
	bytes, bound int
	kept         [][]byte
	closed       *int
}

func (h *hoarder) Allow(string) bool {
	if h.bound == 0 || len(h.kept) < h.bound {
		h.kept = append(h.kept, make([]byte, h.bytes))
	}
	return true
}
func (h *hoarder) Keys() int { return len(h.kept) }
func (h *hoarder) Sweep()    {}
func (h *hoarder) Close()    { *h.closed++ }

func hoarding(name string, kind peers.Kind, clock string, bytes int) (peers.Subject, *int) {
	closed := new(int)
	return peers.Subject{Name: name, Kind: kind, Clock: clock, New: func(o peers.Options) (peers.Limiter, error) {
		return &hoarder{bytes: bytes, bound: o.MaxKeys / 8 * 7, closed: closed}, nil
	}}, closed
}

func TestCurve_OneLimiterIsFilledOnAndOn(t *testing.T) {
	own, closed := hoarding("own", peers.Ours, peers.System, 1024)
	lean, _ := hoarding(leanest[1], peers.Library, "", 4096)
	onCoarse, _ := hoarding("own, coarse clock", peers.Ours, peers.Coarse, 1024)
	fat, _ := hoarding("fat", peers.Library, "", 1024)
	c := CurveConfig{From: 1000, To: 2000, PeersTo: 1200, MaxKeys: []int{800, 1600}}
	curves, full, err := Curve([]peers.Subject{lean, own, onCoarse, fat}, c, silent)
	require.NoError(t, err)
	require.Len(t, curves, 2)
	assert.Equal(t, leanest[1], curves[0].Subject)
	assert.Equal(t, []int{1000, 1100, 1200}, curves[0].Keys)
	assert.Equal(t, sizes(1000, 2000), curves[1].Keys)
	require.Len(t, curves[1].Bytes, len(curves[1].Keys))
	for i := range curves[0].Bytes {
		// The array, and a slice that points to it.
		assert.InDelta(t, 4096+24, curves[0].Bytes[i], 100)
	}
	for i := range curves[1].Bytes {
		assert.InDelta(t, 1024+24, curves[1].Bytes[i], 100)
	}
	require.Len(t, full, 2)
	for i, maxKeys := range c.MaxKeys {
		assert.Equal(t, "own", full[i].Subject)
		assert.Equal(t, maxKeys, full[i].MaxKeys)
		assert.Equal(t, maxKeys/8*7, full[i].Keys)
		assert.InDelta(t, 1024+24, full[i].BytesPerKey, 100, "of each key that it holds")
	}
	assert.Equal(t, 3, *closed)
}

func TestCurve_WrongNumberOfKeysAndFailuresAreErrors(t *testing.T) {
	forgetful, closed := hoarding("forgetful", peers.Ours, peers.System, 16)
	plain := forgetful.New
	forgetful.New = func(o peers.Options) (peers.Limiter, error) { o.MaxKeys = 16; return plain(o) }
	_, _, err := Curve([]peers.Subject{forgetful}, CurveConfig{From: 10, To: 20}, silent)
	assert.EqualError(t, err, "memory curve of forgetful: it holds 14 keys after 15 were charged")
	_, err = weighFull(forgetful, workload.Distinct(100), 100)
	assert.EqualError(t, err, "it holds 14 keys, want 75 to 100")
	assert.Equal(t, 2, *closed)

	broken := peers.Subject{Name: "broken", Kind: peers.Ours, Clock: peers.System, New: func(peers.Options) (peers.Limiter, error) { return nil, errors.New("no") }}
	_, _, err = Curve([]peers.Subject{broken}, CurveConfig{From: 10, To: 20}, silent)
	assert.EqualError(t, err, "memory curve of broken: no")
}

func TestCurve_TheLeanestAreAmongTheSubjects(t *testing.T) {
	names := map[string]peers.Kind{}
	for _, s := range peers.All() {
		names[s.Name] = s.Kind
	}
	for _, name := range leanest {
		assert.Equal(t, peers.Library, names[name], name)
	}
}
