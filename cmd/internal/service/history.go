package service

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	historyEvery = 5 * time.Second
	historyFor   = 15 * time.Minute
	historyLen   = int(historyFor/historyEvery) + 1
)

// history is the totals of the last minutes: of all rules together, and of the liveRules with the most denied hits at each time. It takes
// less than 1 MB.
type history struct {
	mutex   sync.Mutex
	moments []moment // in the order of time, at most historyLen
}

// A moment is the totals at a time. The numbers have no limits in them.
type moment struct {
	time  float64 // Unix seconds
	sum   liveRule
	rules []liveRule
}

// rule returns the totals of a rule, or of all if name is empty.
func (m *moment) rule(name string) (liveRule, bool) {
	if name == "" {
		return m.sum, true
	}
	i := slices.IndexFunc(m.rules, func(r liveRule) bool { return r.Name == name })
	if i < 0 {
		return liveRule{}, false
	}
	return m.rules[i], true
}

// record notes the totals at a time.
func (l *live) record(now time.Time) {
	all, sum := l.rules()
	kept := slices.Clone(all[:min(liveRules, len(all))]) // a clone, so that the rest is no longer in memory
	h := &l.history
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if len(h.moments) == historyLen {
		h.moments = slices.Delete(h.moments, 0, 1)
	}
	h.moments = append(h.moments, moment{unix(now), sum, kept})
}

// pastRates is hits a second between two moments, by the time of the later one; nil if that is not known.
type pastRates struct {
	Time     []float64  `json:"time"`
	Admitted []*float64 `json:"admitted"`
	Denied   []*float64 `json:"denied"`
}

func (h *history) rates(name string) pastRates {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	out := pastRates{[]float64{}, []*float64{}, []*float64{}}
	for i := 1; i < len(h.moments); i++ {
		before, now := &h.moments[i-1], &h.moments[i]
		a, known := before.rule(name)
		b, still := now.rule(name)
		rate := func(from, to uint64) *float64 {
			if !known || !still || to < from || now.time <= before.time {
				return nil // the rule has begun anew, or was not among those that are noted
			}
			r := float64(to-from) / (now.time - before.time)
			return &r
		}
		out.Time = append(out.Time, now.time)
		out.Admitted = append(out.Admitted, rate(a.Admitted, b.Admitted))
		out.Denied = append(out.Denied, rate(a.Denied, b.Denied))
	}
	return out
}

// past answers with the rates of a rule, or of all together without a name.
func (l *live) past(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(l.history.rates(r.URL.Query().Get("rule")))
}
