package rules

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

const planAndCredits = `
domain: d
sluice: {atomic: %t}
descriptors:
- key: client
  descriptors:
  - {key: budget, value: plan, rate_limit: {unit: hour, requests_per_unit: %d, name: plan, then: credits%s}}
  - {key: budget, value: credits, rate_limit: {unit: day, requests_per_unit: %d, name: credits%s}}
- {key: other, rate_limit: {unit: day, requests_per_unit: 1000000}}
`

const (
	annsPlan    = "client=ann,budget=plan"
	annsCredits = "client=ann,budget=credits"
)

// TestThen_ByHand: what the plan has no room for is taken from the credits of the same client; what neither has room for
// counts in none of them; what is given back goes to the credits first.
func TestThen_ByHand(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		w := newWorld(t, Config{}, fmt.Sprintf(planAndCredits, atomic, 100, "", 1000, ""))
		hour := time.Hour - time.Duration(w.clock.Now()%int64(time.Hour))
		day := 24*time.Hour - time.Duration(w.clock.Now()%int64(24*time.Hour))
		st := w.ask(withHits(annsPlan, 70)).Statuses[0]
		require.Equal(t, OK, st.Code)
		require.EqualValues(t, 1030, st.Remaining)
		require.Equal(t, roundUp(hour), st.ResetAfter)
		require.EqualValues(t, 980, w.ask(withHits(annsPlan, 50)).Statuses[0].Remaining)
		require.Equal(t, 980, w.left(annsCredits))
		require.Equal(t, 1000, w.left("client=bob,budget=credits"))
		resp := w.ask(withHits(annsPlan, 981), withHits("other=x", 1))
		require.Equal(t, OverLimit, resp.Code)
		require.Equal(t, "d.client.budget_plan", resp.DeniedBy())
		st = resp.Statuses[0]
		require.Equal(t, map[bool]int{true: 1000000, false: 999999}[atomic], w.left("other=x"))
		require.Equal(t, min(day, 24*time.Hour), st.RetryAfter, "when both are fresh")
		require.EqualValues(t, 980, st.Remaining, "it counts in neither")
		require.Equal(t, OK, w.ask(withHits(annsPlan, 980)).Code)
		require.Equal(t, OverLimit, w.ask(withHits(annsPlan, 0)).Code, "neither has room for one")
		st = w.ask(withHits(annsPlan, 60)).Statuses[0]
		require.Equal(t, hour, st.RetryAfter, "when the plan is fresh")

		back := func(n uint64) { // of what was denied, and of what was not
			d := withHits(annsPlan, n)
			d.Refund = true
			require.Equal(t, OK, w.ask(d).Code)
		}
		back(981 + 60)
		require.Equal(t, 0, w.left(annsCredits), "what was denied gives nothing back")
		back(990)
		require.Equal(t, 990, w.left(annsCredits))
		back(60)
		require.Equal(t, 1000, w.left(annsCredits), "no more than was taken")
		require.Equal(t, 1050, w.left(annsPlan))
		plan, credits := w.series("d.client.budget_plan"), w.series("d.client.budget_credits")
		require.EqualValues(t, 100, plan.Within)
		require.EqualValues(t, 1000, credits.Within)
		require.EqualValues(t, 981+60, plan.Over)
		require.Zero(t, credits.Over)
		require.EqualValues(t, 981+60+50, plan.Refunded)
		require.EqualValues(t, 1000, credits.Refunded)
		require.EqualValues(t, 981+60, plan.Absorbed)
	}
}

// TestThen_BothInOneCall: charges of the same budgets in one call add up, where the call is all or none.
func TestThen_BothInOneCall(t *testing.T) {
	w := newWorld(t, Config{}, fmt.Sprintf(planAndCredits, true, 100, "", 50, ""))
	require.Equal(t, OK, w.ask(withHits(annsPlan, 70), withHits(annsPlan, 70)).Code)
	require.Equal(t, 10, w.left(annsPlan))
	resp := w.ask(withHits(annsPlan, 6), withHits(annsCredits, 5))
	require.Equal(t, OverLimit, resp.Code)
	require.Equal(t, 10, w.left(annsPlan))
	require.Equal(t, OK, w.ask(withHits(annsPlan, 5), withHits(annsCredits, 5)).Code)
	require.Equal(t, 0, w.left(annsPlan))
}

// bothModel is the two budgets with fixed windows of an hour and a day, in whole numbers.
type bothModel struct {
	limits           [2]int
	used             [2]int
	window           [2]int64
	spilled, missing int
	missingTill      int64
}

func (m *bothModel) roll(now int64) {
	for i, p := range []time.Duration{time.Hour, 24 * time.Hour} {
		if n := now / int64(p); n != m.window[i] {
			m.window[i], m.used[i] = n, 0
			if i == 1 {
				m.spilled = 0
			}
		}
	}
	if now >= m.missingTill {
		m.missing = 0
	}
}

func (m *bothModel) charge(now int64, n int) bool {
	m.roll(now)
	own := min(n, m.limits[0]-m.used[0])
	if n-own > m.limits[1]-m.used[1] {
		m.missing += n
		m.missingTill = now + int64(time.Hour)
		return false
	}
	m.used[0] += own
	m.used[1] += n - own
	m.spilled += n - own
	return true
}

func (m *bothModel) giveBack(now int64, n int) {
	m.roll(now)
	absorbed := min(n, m.missing)
	m.missing -= absorbed
	second := min(n-absorbed, m.spilled)
	m.spilled -= second
	m.used[1] = max(0, m.used[1]-second)
	m.used[0] = max(0, m.used[0]-(n-absorbed-second))
}

// TestThen_Model: random charges, refunds, direct charges of the credits, restarts and reloads leave what the model leaves.
func TestThen_Model(t *testing.T) {
	r := seeded.Rand(t)
	passed, denied := 0, 0
	for round := range 40 {
		atomic := round%2 == 0
		m := &bothModel{limits: [2]int{1 + r.IntN(200), 1 + r.IntN(600)}}
		text := func() string {
			return fmt.Sprintf(planAndCredits, atomic, m.limits[0], "", m.limits[1], "")
		}
		w := newWorld(t, Config{}, text())
		for range 400 {
			w.clock.Advance(time.Duration(r.Int64N(int64(15 * time.Minute))))
			now, n := w.clock.Now(), r.IntN(120)
			switch r.IntN(12) {
			case 0, 1, 2:
				d := withHits(annsPlan, uint64(n))
				d.Refund = true
				require.Equal(t, OK, w.ask(d).Code)
				m.giveBack(now, n)
			case 3:
				m.roll(now)
				fits := m.used[1]+n+1 <= m.limits[1]
				require.Equal(t, fits, w.ask(withHits(annsCredits, uint64(n+1))).Code == OK)
				if fits {
					m.used[1] += n + 1
				}
			case 4:
				again, err := w.restored(text(), w.snapshot())
				require.NoError(t, err)
				w = again
			case 5:
				m.roll(now)
				m.limits = [2]int{max(m.used[0], 1+r.IntN(200)), max(m.used[1], 1+r.IntN(600))}
				require.NoError(t, w.Swap(mustLoad(t, text())))
			default:
				want := m.charge(now, n+1)
				got := w.ask(withHits(annsPlan, uint64(n+1)))
				require.Equal(t, want, got.Code == OK)
				if want {
					passed++
				} else {
					denied++
				}
			}
			m.roll(now)
			require.Equal(t, m.limits[0]+m.limits[1]-m.used[0]-m.used[1], w.left(annsPlan))
			require.Equal(t, m.limits[1]-m.used[1], w.left(annsCredits))
		}
	}
	require.Greater(t, passed, 1000)
	require.Greater(t, denied, 1000)
}

// TestThen_Concurrent: calls at the same time take from both budgets exactly what they are admitted for, and all that there
// is; and give back what they took, whether they were admitted or denied.
func TestThen_Concurrent(t *testing.T) {
	r := seeded.Rand(t)
	kinds := []string{"", ", algorithm: gcra", ", algorithm: token-bucket", ", algorithm: sliding-window", ", algorithm: sliding-log", ", algorithm: leaky-bucket"}
	for round := range 24 {
		limits := [2]int{1 + r.IntN(400), 1 + r.IntN(400)}
		text := fmt.Sprintf(planAndCredits, round%2 == 0, limits[0], kinds[r.IntN(len(kinds))], limits[1], kinds[r.IntN(len(kinds))])
		w := newWorld(t, Config{}, text)
		var admitted, returned, direct atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			r := rand.New(rand.NewPCG(r.Uint64(), 1))
			all.Go(func() {
				var resp Response
				ask := func(d Descriptor) bool {
					if err := w.Decide(&Request{Domain: "d", Descriptors: []Descriptor{d}}, &resp); err != nil {
						panic(err)
					}
					return resp.Code == OK
				}
				for range 150 {
					n := uint64(1 + r.IntN(9))
					switch r.IntN(8) {
					case 0:
						if ask(withHits(annsCredits, n)) {
							direct.Add(int64(n))
						}
					default:
						back := withHits(annsPlan, uint64(r.IntN(int(n)+1)))
						back.Refund = true
						if ask(withHits(annsPlan, n)) {
							admitted.Add(int64(n))
							returned.Add(int64(*back.Hits))
						} else {
							*back.Hits = n
						}
						ask(back)
					}
				}
				for ask(withHits(annsPlan, 1)) {
					admitted.Add(1)
				}
				back := withHits(annsPlan, 1)
				back.Refund = true
				ask(back)
			})
		}
		all.Wait()
		used := int(admitted.Load() - returned.Load() + direct.Load())
		require.Equal(t, limits[0]+limits[1]-used, w.left(annsPlan), text)
		// The denial of a caller's last call may have absorbed another caller's refund. The last refund of the first
		// caller, of 1, then gives a unit back, and nobody may be left to take it.
		require.Less(t, w.left(annsPlan), 8, "each went on until both were used up, and gave no more back: %s", text)
		for w.left(annsPlan) > 0 {
			require.Equal(t, OK, w.ask(withHits(annsPlan, 1)).Code, text)
			admitted.Add(1)
		}
		plan, credits := w.series("d.client.budget_plan"), w.series("d.client.budget_credits")
		require.EqualValues(t, admitted.Load()+direct.Load(), plan.Within+credits.Within, text)
		require.EqualValues(t, returned.Load(), plan.Refunded-plan.Absorbed+credits.Refunded, text)
	}
}

// TestThen_Full: without room to note what came from the credits, what is given back goes to the plan.
func TestThen_Full(t *testing.T) {
	w := newWorld(t, Config{}, fmt.Sprintf(planAndCredits, false, 1, "", 10, ""))
	w.memory.spilled.most = 0
	require.Equal(t, OK, w.ask(withHits(annsPlan, 5)).Code)
	d := withHits(annsPlan, 5)
	d.Refund = true
	w.ask(d)
	require.Equal(t, 6, w.left(annsCredits))
	require.Equal(t, 7, w.left(annsPlan))
}

// TestThen_Bound: hits beyond what one budget ever holds are not cut to fit in the other.
func TestThen_Bound(t *testing.T) {
	text := fmt.Sprintf(planAndCredits, false, 1, ", scale: 1000", 10_000_000, ", scale: 1000")
	wide(t, text)
	w := newWorld(t, Config{}, text)
	require.Equal(t, OverLimit, w.ask(withHits(annsPlan, 10_000_001_001)).Code)
	require.Equal(t, OK, w.ask(withHits(annsPlan, 9_000_000_000)).Code)
	require.Equal(t, 1_000_001, w.left(annsCredits))
	require.Equal(t, OverLimit, w.ask(withHits(annsPlan, 9_000_000_000)).Code)
}

// TestThen_NoAllocations: a second budget takes no allocation.
func TestThen_NoAllocations(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		w := newWorld(t, Config{}, fmt.Sprintf(planAndCredits, atomic, 10, "", 1_000_000, ""))
		req := &Request{Domain: "d", Descriptors: []Descriptor{withHits(annsPlan, 7), describe("other=x")}}
		var resp Response
		require.NoError(t, w.Decide(req, &resp))
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = w.Decide(req, &resp) }))
	}
}
