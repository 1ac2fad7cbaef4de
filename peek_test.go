package sluice

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPeek_BlockedMeanwhile: a call that has been described before somebody blocks the key is described
// anew, and nothing is left of what was said of it. The key can be in its table or in a cell.
func TestPeek_BlockedMeanwhile(t *testing.T) {
	forEveryTail(t, func(t *testing.T, c Config) {
		for name, call := range map[string]func(k Key) Decision{
			"Peek(1)": func(k Key) Decision { return k.Peek(1) },
			"Peek(0)": func(k Key) Decision { return k.Peek(0) },
			"Take(0)": func(k Key) Decision { return k.Take(0) },
			"Status": func(k Key) Decision {
				s := k.Status()
				return Decision{Limit: s.Limit.Capacity(), Remaining: s.Remaining, RetryAfter: s.NextAfter, ResetAfter: s.ResetAfter}
			},
		} {
			l, _ := newFrozen(t, c)
			k, burst := l.Key("k"), burstOf(l)
			require.True(t, k.Allow())
			meanwhile(l, nothing, func() { k.Block(time.Hour) })
			require.Equal(t, Decision{Limit: burst, RetryAfter: time.Hour, ResetAfter: time.Hour}, call(k), name)
		}
	})
}

// TestPeek_OfABlockThatIsOver is that of a fresh key, also while somebody ends the block: then the tail no
// longer has it.
func TestPeek_OfABlockThatIsOver(t *testing.T) {
	forEveryTail(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		p := l.policyOf(0)
		key := state{blockedTail | 5, make([]atomic.Uint64, p.tailLen())}
		for _, cost := range []int{0, 1} {
			var d Decision
			p.peek(&d, key, uint64(clock.Now()), clock.Now(), cost)
			require.Equal(t, l.Key("other").Peek(cost), d)
		}
	})
}

// TestPeekAt_IsPeekAtThatTime, also of a key whose calls are let pass and flagged.
func TestPeekAt_IsPeekAtThatTime(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		changes := map[string]func(c *Config){
			"plain":  func(*Config) {},
			"soft":   func(c *Config) { c.Soft = 50 },
			"shadow": func(c *Config) { c.Shadow = true },
		}
		for name, change := range changes {
			c := c
			change(&c)
			l, clock := newFrozen(t, c)
			k := l.Key("k")
			require.True(t, k.AllowN(c.Limit.Capacity()))
			for range 3 {
				costs := []int{-1, 0, 1, 40, 60, math.MaxInt}
				var then []Decision
				for _, cost := range costs {
					then = append(then, k.PeekAt(clock.Now()+int64(c.Limit.Period/7), cost))
				}
				clock.Advance(c.Limit.Period / 7)
				for i, cost := range costs {
					require.Equal(t, k.Peek(cost), then[i], "%s, cost %d", name, cost)
				}
				k.AllowN(40)
			}
		}
	})
}
