package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// FuzzReply: whatever a server answers to a script is an error, or makes decisions whose times are not negative.
func FuzzReply(f *testing.F) {
	text := func(numbers ...int64) []byte {
		b := appendUint32(appendUint56(nil, startMicros), numbers[0])
		for _, n := range numbers[1:] {
			b = appendUint56(b, n)
		}
		return b
	}
	for _, b := range [][]byte{
		text(1, 3, 0, 0), text(0, 50, 0, 0), text(0, 5, startMicros-5_000_000, startMicros-5_000_000), text(0, 5, startMicros+5, 1),
		text(0, 0, 0, 0), text(0, exact-1, exact-1, exact-1), text(1, 50, 0, 0, 7, startMicros),
	} {
		for v := range byte(2 * len(variants)) {
			f.Add(b, v, 3)
		}
	}
	f.Fuzz(func(t *testing.T, answer []byte, variant byte, cost int) {
		c := variants[int(variant/2)%len(variants)]
		c.Limit, c.Offset = sluice.Per(5, 3*time.Second), c.Offset*1000
		p, err := newPlan(c, nil)
		require.NoError(t, err)
		p.holds = variant%2 == 1
		r := request{plan: p, op: opAdmit, k: 1, n: int64(max(1, min(cost, 5)))}
		answered, err := unpackReply(string(answer), p.holds)
		if err = r.checked(&answered, err); err != nil {
			return
		}
		g := &group{request: r, reply: answered, charges: 2}
		for i, admitted := range []bool{false, true, false} {
			view := answered.view
			if g.op = []byte{opAdmit, opAdmit, opDebit}[i]; i == 2 {
				view = g.viewOf(0)
			}
			d := p.describe(view, answered.blocked(), cost, admitted)
			require.GreaterOrEqual(t, d.RetryAfter, time.Duration(0), "%v %+v: %+v", c.Algorithm, answered, d)
			require.GreaterOrEqual(t, d.ResetAfter, time.Duration(0), "%v %+v: %+v", c.Algorithm, answered, d)
			require.GreaterOrEqual(t, d.Remaining, 0, "%v %+v: %+v", c.Algorithm, answered, d)
		}
	})
}
