package sluice

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A mintReservation is one for a key that has been made fresh gen times.
type mintReservation struct {
	r    *Reservation
	gen  int
	cost int
}

// TestModel_NothingIsMinted: at one instant a key never has more than what has not been
// charged since it was fresh, whatever becomes of it and of its reservations.
func TestModel_NothingIsMinted(t *testing.T) {
	rng := seeded.Rand(t)
	for _, variant := range []Config{{Algorithm: GCRA}, {Algorithm: TokenBucket}, {Algorithm: LeakyBucket}} {
		t.Run(variantName(variant), func(t *testing.T) {
			for range 300 {
				mintOnce(t, rng, variant)
			}
		})
	}
}

// mintOnce lets a few keys that do not all fit have what can become of them.
func mintOnce(t *testing.T, rng *rand.Rand, c Config) {
	clock := NewManualClock(start)
	limits := []Limit{PerSecond(1).WithBurst(10), PerSecond(1).WithBurst(10), PerSecond(2).WithBurst(10), Per(1, 7*time.Second).WithBurst(10), Unlimited, DenyAll}
	c.Limit, c.Clock, c.MaxKeys, c.Shards, c.Hash = limits[0], clock, 3, 1, HashStable
	if rng.IntN(3) == 0 {
		c.BlockFor = time.Minute
	}
	l := mustNew(t, c)
	keys := []string{"a", "b", "c", "d", "e"}
	spent, gen := map[string]int{}, map[string]int{}
	reservations := map[string][]mintReservation{}
	var log []string
	tracked := func(k string) bool {
		return l.update(l.Key(k).id, func(_ *policy, key state) uint64 { return key.word })
	}
	fresh := func(k string) { spent[k] = 0; gen[k]++ }
	for range 40 {
		k := keys[rng.IntN(len(keys))]
		cost := 1 + rng.IntN(10)
		was := map[string]bool{}
		for _, k := range keys {
			was[k] = tracked(k)
		}
		blocked := l.isBlockedKey(k)
		op := rng.IntN(14)
		switch op {
		case 0, 1:
			if d := l.Take(k, cost); d.Allowed && l.Key(k).Limit().Rate < 100 {
				spent[k] += cost
			}
		case 2:
			l.Key(k).Debit(cost)
			if l.Key(k).Limit().Rate < 100 && !blocked {
				spent[k] += cost
			}
		case 3, 4, 5:
			r, err := l.Key(k).Reserve(cost, time.Hour)
			if err == nil {
				n := cost
				if l.Key(k).Limit().Rate > 100 {
					n = 0
				} else {
					spent[k] += cost
				}
				reservations[k] = append(reservations[k], mintReservation{r, gen[k], n})
			}
		case 6, 7:
			if rs := reservations[k]; len(rs) > 0 {
				i := rng.IntN(len(rs))
				r := rs[i]
				reservations[k] = append(rs[:i:i], rs[i+1:]...)
				used := rng.IntN(r.cost + 1)
				r.r.Settle(used)
				if r.gen == gen[k] && !blocked {
					spent[k] -= r.cost - used
				}
			}
		case 8:
			if rng.IntN(2) == 0 {
				l.Key(k).Reset()
				fresh(k)
			} else {
				l.Key(k).Refund(cost)
				if !blocked {
					spent[k] = max(0, spent[k]-cost)
				}
			}
		case 9:
			if rng.IntN(2) == 0 {
				l.Key(k).Block(time.Minute)
			} else if blocked {
				l.Key(k).Unblock()
				fresh(k)
			}
		case 10:
			l.Key(k).SetLimit(limits[rng.IntN(len(limits))])
		case 11:
			if rng.IntN(2) == 0 {
				l.Key(k).ClearLimit()
			} else {
				l.SetLimit(limits[rng.IntN(4)])
			}
		}
		if op >= 12 {
			lim := limits[rng.IntN(len(limits))]
			kk, _ := l.Key(k).WithLimit(lim)
			if n, _ := kk.TakeUpTo(cost); lim.Rate < 100 {
				spent[k] += n
			}
		}
		log = append(log, fmt.Sprintf("%s op%d %d", k, op, cost))
		for _, k := range keys {
			if was[k] && !tracked(k) {
				fresh(k)
				log = append(log, k+" dropped")
			}
			d := l.Key(k).Peek(0)
			if lim := l.Key(k).Limit(); lim.Rate == 0 || lim.Rate > 100 || l.isBlockedKey(k) {
				continue
			}
			if d.Remaining > max(0, 10-max(spent[k], 0)) {
				t.Fatalf("%+v\n%v: %s has %d, spent %d", c, log, k, d.Remaining, spent[k])
			}
		}
	}
}

func (l *Limiter) isBlockedKey(k string) bool {
	return l.blockNow(l.Key(k).id) > 0
}
