package limittest

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// FuzzChecker: a limit and records of any times, in any order. Each find is a violation, and none is missed if the instants are in order.
func FuzzChecker(f *testing.F) {
	f.Add([]byte{1, 10, 1, 0, 0, 1, 10, 0, 1, 9, 0, 1})
	f.Add([]byte{3, 7, 2, 5, 2, 3, 0, 4, 1, 20, 0, 2, 200, 0, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 6 || len(data) > 120 {
			return
		}
		limit := sluice.Per(1+int(data[0]%20), 1+time.Duration(data[1])).WithBurst(1 + int(data[2]%20))
		var records []record
		at, ordered, instants := int64(100), true, true
		for d := data[3:]; len(d) >= 3; d = d[3:] {
			step, width := int64(d[0]), int64(d[1]%16)
			if step > 240 {
				step, ordered = 240-step, false
			}
			at = max(0, at+step)
			instants = instants && width == 0
			records = append(records, record{at, at + width, "k", 1 + int(d[2]%4)})
		}
		most := bucketBound(limit)
		want := bruteForce(records, most)
		for _, p := range []Promise{Bucket(limit), Bound(func(d time.Duration) int { return int(most(int64(d)).Int64()) }, 0)} {
			got := check(p, records)
			if got != nil {
				require.Positive(t, big.NewInt(certain(records, got.From, got.To)).Cmp(most(got.To-got.From)), "%v: %v", records, got)
			}
			if ordered && instants {
				require.Equal(t, want == nil, got == nil, "%v: %v", records, got)
			}
			if ordered && instants && want != nil {
				require.Equal(t, want.Span(), got.Span())
			}
		}
	})
}
