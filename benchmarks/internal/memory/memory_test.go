package memory

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

const keys = 100_000

// holder keeps the keys that it is told to keep, and nothing else.
type holder struct {
	m       map[string]struct{}
	most    int
	closed  bool
	objects []*[4]int64
}

func (h *holder) Allow(key string) bool {
	if len(h.m) < h.most {
		h.m[key] = struct{}{}
		h.objects = append(h.objects, new([4]int64))
	}
	return true
}
func (h *holder) Keys() int { return len(h.m) }
func (h *holder) Sweep()    {}
func (h *holder) Close()    { h.closed = true }

func holding(most int) (peers.Subject, *holder) {
	h := &holder{m: map[string]struct{}{}, most: most}
	return peers.Subject{Name: "holder", New: func(peers.Options) (peers.Limiter, error) { return h, nil }}, h
}

func silent(string, ...any) {}

func TestRun_RetainedKeysArePaidFor(t *testing.T) {
	s, _ := holding(keys)
	rows, err := Run([]peers.Subject{s}, keys, silent)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	row := rows[0]
	assert.Equal(t, keys, row.Keys)
	// A key is a string of its own, and the array another object; the map adds few.
	assert.InDelta(t, 2, row.ObjectsPerKey, 0.2)
	// 16 bytes the key, 32 the array, a pointer to it, and two words the string in the map.
	assert.Greater(t, row.BytesPerKey, float64(16+32+3*unsafe.Sizeof(uintptr(0))))
	assert.GreaterOrEqual(t, len(row.GC), gcLeast)
	assert.GreaterOrEqual(t, len(row.GCWithout), gcLeast)
}

// nothing holds nothing: the keys must not be kept alive by the measurement.
type nothing struct{}

func (nothing) Allow(string) bool { return true }
func (nothing) Keys() int         { return -1 }
func (nothing) Sweep()            {}
func (nothing) Close()            {}

func TestRun_KeysAreLetGo(t *testing.T) {
	s := peers.Subject{Name: "nothing", New: func(peers.Options) (peers.Limiter, error) { return nothing{}, nil }}
	rows, err := Run([]peers.Subject{s}, keys, silent)
	require.NoError(t, err)
	assert.InDelta(t, 0, rows[0].BytesPerKey, 1)
	assert.InDelta(t, 0, rows[0].ObjectsPerKey, 0.05)
}

func TestRun_WrongNumberOfKeysIsAnError(t *testing.T) {
	s, h := holding(7)
	_, err := Run([]peers.Subject{s}, 10, silent)
	assert.EqualError(t, err, "memory of holder: it holds 7 keys after 10 were charged")
	assert.True(t, h.closed)
}

func TestRun_BareLimitersHaveNoKeysAndFailuresAreNamed(t *testing.T) {
	rows, err := Run([]peers.Subject{{Name: "bare", Kind: peers.Bare}}, 10, silent)
	require.NoError(t, err)
	assert.Empty(t, rows)

	broken := peers.Subject{Name: "broken", New: func(peers.Options) (peers.Limiter, error) { return nil, errors.New("no") }}
	_, err = Run([]peers.Subject{broken}, 10, silent)
	assert.EqualError(t, err, "memory of broken: no")
}

// allocator allocates once a call, on keys that it knows.
type allocator struct {
	nothing
	last *[4]int
}

func (a *allocator) Allow(string) bool { a.last = new([4]int); return true }

func TestAllocs_OfTheCallsAndNothingElse(t *testing.T) {
	subject := func(name string, l peers.Limiter) peers.Subject {
		return peers.Subject{Name: name, New: func(peers.Options) (peers.Limiter, error) { return l, nil }}
	}
	unique := workload.Workload{Name: "new", Unique: true}
	rows, err := Allocs([]peers.Subject{subject("one", &allocator{}), subject("none", nothing{})},
		[]workload.Workload{workload.Uniform(1), unique}, 10_000)
	require.NoError(t, err)
	require.Len(t, rows, 2)
	assert.Equal(t, "one", rows[0].Subject)
	assert.InDelta(t, 1, rows[0].PerCall, 0.01)
	assert.InDelta(t, 0, rows[1].PerCall, 0.01)

	denies := peers.Subject{Name: "broken", New: func(peers.Options) (peers.Limiter, error) { return nil, errors.New("no") }}
	_, err = Allocs([]peers.Subject{denies}, []workload.Workload{workload.Uniform(1)}, 1)
	assert.EqualError(t, err, "allocations of broken, uniform-1: no")
}
