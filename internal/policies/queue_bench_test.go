package policies

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// BenchmarkQueue is what a request costs that finds room, and one that finds no place: a flood beyond the places.
func BenchmarkQueue(b *testing.B) {
	for _, full := range []bool{false, true} {
		name := "room"
		limit := sluice.Per(1<<30, time.Second)
		if full {
			name, limit = "full", sluice.PerHour(1)
		}
		b.Run(name, func(b *testing.B) {
			l, err := sluice.New(sluice.Config{Limit: limit})
			require.NoError(b, err)
			ps := []queuePolicy{{Name: "p", Limiter: l, Key: byClient}}
			Order(ps)
			q := NewQueue(QueueTerms{1, 1, time.Minute})
			_, reason := PutInto(q, ps)
			require.Empty(b, reason)
			r := &request{client: "a"}
			var j Judgement[*request, struct{}]
			_ = j.JudgeInTurn(b.Context(), j.Collect(ps, r, nil), q) // takes the only unit, if it is one
			b.ReportAllocs()
			denied := 0
			for b.Loop() {
				if j.JudgeInTurn(b.Context(), j.Collect(ps, r, nil), q).Outcome == Denied {
					denied++
				}
			}
			require.Equal(b, full, denied > b.N/2)
		})
	}
}
