package spool

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// all reads the requests of a spool.
func all(t *testing.T, s *Spool) (out []Request) {
	t.Helper()
	r, buf := s.Read(), make([]Request, 7)
	for batch := r.Batch(buf); len(batch) > 0; batch = r.Batch(buf) {
		out = append(out, batch...)
	}
	require.NoError(t, r.Err())
	require.Empty(t, r.Batch(buf), "the end stays the end")
	return out
}

// TestSpool_ReadsWhatWasWritten, for spools in memory, in a file, and in both.
func TestSpool_ReadsWhatWasWritten(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	rng := seeded.Rand(t)
	for _, limit := range []int{0, 1, 7, 1000, readAhead, 3 * readAhead} {
		s := &Spool{limit: limit}
		var want []Request
		now := int64(0)
		for range 50_000 {
			if rng.IntN(3) == 0 {
				now += rng.Int64N(1 << rng.IntN(40))
			}
			q := Request{rng.IntN(1 << rng.IntN(30)), now}
			want = append(want, q)
			require.NoError(t, s.Add(q.Client, q.Now))
		}
		for range 20_000 { // as long as can be, so that some lie across the end of a buffer
			now += 1 << 47
			want = append(want, Request{math.MaxInt32, now})
			require.NoError(t, s.Add(math.MaxInt32, now))
		}
		want = append(want, Request{math.MaxInt32, math.MaxInt64})
		require.NoError(t, s.Add(math.MaxInt32, math.MaxInt64))
		assert.Equal(t, want, all(t, s), limit)
		assert.Equal(t, want, all(t, s), "a second time")
		assert.EqualValues(t, len(want), s.n)
		assert.Equal(t, limit != 0, s.file != nil)
		require.NoError(t, s.Close())
		left, err := os.ReadDir(os.TempDir())
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

func TestSpool_Empty(t *testing.T) {
	s := new(Spool)
	assert.Empty(t, all(t, s))
	assert.NoError(t, s.Close())
}

// TestSpool_NoRoom: the error says what could not be done, and comes again.
func TestSpool_NoRoom(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/nowhere")
	s := &Spool{limit: 1}
	require.NoError(t, s.Add(1, 1))
	err := s.Add(1, 1)
	assert.ErrorContains(t, err, "keeping the requests of the log in a temporary file: ")
	assert.Equal(t, err, s.Add(1, 1))
	assert.EqualValues(t, 1, s.n)
}

// TestSpool_LostFile: what cannot be read is an error, and not the end.
func TestSpool_LostFile(t *testing.T) {
	s := &Spool{limit: 1}
	for range 10 {
		require.NoError(t, s.Add(1, 1))
	}
	require.NoError(t, s.file.Truncate(5))
	r := s.Read()
	assert.Less(t, len(r.Batch(make([]Request, 10))), 10)
	assert.ErrorContains(t, r.Err(), "temporary file")
	require.NoError(t, s.Close())
}
