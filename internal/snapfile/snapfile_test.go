package snapfile

import (
	"bytes"
	"errors"
	"io"
	"math"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// An entry is what comes back of one.
type entry struct {
	id, word uint64
	tail     []uint64
}

func tailOf(words ...uint64) []atomic.Uint64 {
	tail := make([]atomic.Uint64, len(words))
	for i, w := range words {
		tail[i].Store(w)
	}
	return tail
}

// twoSections is a snapshot of a section of two counts of entries, and of an empty one.
func twoSections(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Section(Header{Algorithm: 5, Rate: 7, Period: -1, TailLen: 2, Source: Source{Kind: 1, LimitRate: math.MaxInt64}})
	var e Entries
	w.Entries(e) // which would be its end
	e.Add(1, 10, tailOf(100, 101))
	e.Add(math.MaxUint64, 0, tailOf(0, math.MaxUint64))
	require.Len(t, e.Bytes, 2*Size(2))
	w.Entries(e)
	e = Entries{}
	e.Add(3, 30, tailOf(300, 301))
	w.Entries(e)
	w.Section(Header{Algorithm: 1, Burst: 4, Soft: 5, Offset: 6, Room: 7})
	require.NoError(t, w.Close())
	return b.Bytes()
}

func read(r io.Reader) (headers []Header, entries []entry, err error) {
	in := NewReader(r)
	for {
		h, ok, err := in.Section()
		if err != nil || !ok {
			return headers, entries, err
		}
		headers = append(headers, h)
		for {
			id, word, ok, err := in.Entry()
			if err != nil {
				return headers, entries, err
			}
			if !ok {
				break
			}
			tail, err := in.Tail(h.TailLen)
			if err != nil {
				return headers, entries, err
			}
			e := entry{id: id, word: word}
			for i := range tail {
				e.tail = append(e.tail, tail[i].Load())
			}
			entries = append(entries, e)
		}
	}
}

func TestReader_ReadsWhatWasWritten(t *testing.T) {
	headers, entries, err := read(iotest.OneByteReader(bytes.NewReader(twoSections(t))))
	require.NoError(t, err)
	require.Equal(t, []Header{
		{Algorithm: 5, Rate: 7, Period: -1, TailLen: 2, Source: Source{Kind: 1, LimitRate: math.MaxInt64}},
		{Algorithm: 1, Burst: 4, Soft: 5, Offset: 6, Room: 7},
	}, headers)
	require.Equal(t, []entry{{1, 10, []uint64{100, 101}}, {math.MaxUint64, 0, []uint64{0, math.MaxUint64}}, {3, 30, []uint64{300, 301}}}, entries)
}

// TestReader_FindsEveryAccident: whichever byte is another one, and wherever the input ends or goes on.
func TestReader_FindsEveryAccident(t *testing.T) {
	good := twoSections(t)
	for i := range good {
		for _, bit := range []byte{1, 0x80} {
			b := bytes.Clone(good)
			b[i] ^= bit
			_, _, err := read(bytes.NewReader(b))
			require.ErrorIs(t, err, ErrBad, "byte %d", i)
		}
		_, _, err := read(bytes.NewReader(good[:i]))
		require.ErrorIs(t, err, ErrBad, "%d bytes", i)
		require.ErrorContains(t, err, "cut short")
	}
	_, _, err := read(bytes.NewReader(append(bytes.Clone(good), 0)))
	require.ErrorContains(t, err, "something follows it")
	_, _, err = read(bytes.NewReader(append([]byte(Magic), Version+1)))
	require.ErrorContains(t, err, "its version is 6; want 5")
	_, _, err = read(bytes.NewReader([]byte("something else")))
	require.ErrorContains(t, err, "it does not begin as one")
}

// TestErrors_OfTheInputAndTheOutput are told as they are.
func TestErrors_OfTheInputAndTheOutput(t *testing.T) {
	broken := errors.New("broken")
	good := twoSections(t)
	for i := range good {
		_, _, err := read(io.MultiReader(bytes.NewReader(good[:i]), iotest.ErrReader(broken)))
		require.ErrorIs(t, err, broken, "after %d bytes", i)
		require.NotErrorIs(t, err, ErrBad)
	}
	_, _, err := read(io.MultiReader(bytes.NewReader(good), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	w := NewWriter(failing{broken})
	w.Section(Header{})
	require.ErrorIs(t, w.Close(), broken)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
