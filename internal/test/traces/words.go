package traces

import (
	"math"
	"math/big"
	"math/bits"

	"github.com/sluice-go/sluice/internal/test/oracle"
)

// Words are the bounds of a key's words, from the drawing of words alone: a count has all
// the bits that the number of a window does not need to last as long as the clock, and at least
// those of the most that can be admitted at once.
type Words struct {
	CountMost int64 // the most that can be counted; 0 of algorithms that do not count
	Wide      bool  // a sliding window whose two counts and number take more than a word
	Lasts     bool  // the windows have numbers to the end of the clock
}

// How many bits there are for the number of a window and counts: in a word, and in one that has
// a tail, where two are marks. The count of a window that begins at a charge has at least some.
const (
	wordBits        = 64
	wideBits        = 62
	firstChargeBits = 28
)

// WordsOf returns the bounds of the words under a limit that keeps state.
func WordsOf(c oracle.Config) Words {
	limit := c.Burst
	if limit == 0 {
		limit = c.Rate
	}
	least, sliding := bits.Len64(uint64(limit)), c.Algorithm == oracle.SlidingWindow || c.Algorithm == oracle.InFlight
	switch {
	case c.Algorithm == oracle.FixedWindow && c.FirstCharge:
		return Words{CountMost: 1<<max(least, firstChargeBits) - 1, Lasts: true}
	case c.Algorithm == oracle.FixedWindow, c.Algorithm == oracle.TokenBucket && c.Interval:
		return counting(c, wordBits, least, 1)
	case sliding && lasts(c, wordBits, 2*least):
		return counting(c, wordBits, least, 2)
	case sliding:
		w := counting(c, wideBits, least, 1)
		w.Wide = true
		return w
	}
	return Words{}
}

func counting(c oracle.Config, word, least, counts int) Words {
	b := least
	for lasts(c, word, counts*(b+1)) {
		b++
	}
	return Words{CountMost: 1<<b - 1, Lasts: lasts(c, word, counts*b)}
}

// lasts reports whether numbers in what counts of so many bits leave of a word last as long as
// the clock. In a word of 64 bits, those that begin with two ones are marks.
func lasts(c oracle.Config, word, counts int) bool {
	n := word - counts
	if n < 2 {
		return false
	}
	last := big.NewInt(1)
	if last.Lsh(last, uint(n)); word == wordBits {
		last.Mul(last, big.NewInt(3)).Rsh(last, 2)
	}
	end := last.Sub(last, big.NewInt(1)) // the last number, whose window never ends
	end.Mul(end, big.NewInt(c.Period))
	if c.Offset != 0 { // window 0 has begun before 1970
		end.Sub(end, big.NewInt(c.Period-c.Offset))
	}
	return end.Cmp(big.NewInt(math.MaxInt64)) >= 0
}
