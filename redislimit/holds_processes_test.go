package redislimit

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// clone returns a model that later calls of m do not touch.
func (m *holdModel) clone() *holdModel {
	c := *m
	c.holds = map[string]*heldUnits{}
	for id, h := range m.holds {
		own := *h
		own.at, own.units = slices.Clone(h.at), slices.Clone(h.units)
		c.holds[id] = &own
	}
	c.ended, c.counts, c.spent = maps.Clone(m.ended), maps.Clone(m.counts), slices.Clone(m.spent)
	return &c
}

// text is the same for models that no call can tell apart.
func (m *holdModel) text() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(m.holds)) {
		fmt.Fprint(&b, id, *m.holds[id], " ")
	}
	slices.SortFunc(m.spent, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	maps.DeleteFunc(m.counts, func(_, n int64) bool { return n == 0 })
	fmt.Fprint(&b, m.ended, m.now, m.debt, m.counts, m.spent, m.start, m.overs, m.interval)
	return b.String()
}

// A madeCall is a call of a process, and its answer.
type madeCall struct {
	StoreCall
	process int
	dies    string
	answer  *holdAnswer // nil if the process has died
}

// orders returns the models after calls that were made at the same time: for each order in which they return what they have
// returned. A call without an answer has been made or not; but one whose process has died before or after it is known.
func orders(m *holdModel, calls []madeCall, now int64) (after []*holdModel) {
	if len(calls) == 0 {
		return []*holdModel{m}
	}
	for i, c := range calls {
		rest := slices.Delete(slices.Clone(calls), i, i+1)
		if c.answer == nil && c.dies != "after" {
			after = append(after, orders(m, rest, now)...)
		}
		if c.answer == nil && c.dies == "before" {
			continue
		}
		next := m.clone()
		if got := next.apply(&c.StoreCall, now); c.answer == nil || got == *c.answer {
			after = append(after, orders(next, rest, now)...)
		}
	}
	return after
}

// A holderCrowd is three processes that share the keys of a limit, and all that can have become of them by what the processes
// have answered.
type holderCrowd struct {
	*testing.T
	rng       *rand.Rand
	server    *server
	processes [3]*holderProcess
	prefix    string
	limit     LimitConfig
	plan      *plan
	now       int64
	models    map[string][]*holdModel
	log       []string

	died, together int
}

func newHolderCrowd(t *testing.T, rng *rand.Rand, s *server) *holderCrowd {
	c := &holderCrowd{T: t, rng: rng, server: s}
	for i := range c.processes {
		c.processes[i] = startHolder(t, s.addr)
	}
	return c
}

// begin begins a history with another limit.
func (c *holderCrowd) begin(cfg LimitConfig) {
	cfg.Exact, cfg.Name = true, "a"
	c.prefix, c.limit, c.now, c.models, c.log = newPrefix(), cfg, startMicros, map[string][]*holdModel{}, nil
	var err error
	c.plan, err = newPlan(cfg.config(), nil)
	require.NoError(c, err)
	c.plan.holds = true
	for _, p := range c.processes {
		p.openLimit(c.prefix, &cfg)
	}
}

// of returns what can have become of a key.
func (c *holderCrowd) of(key string) []*holdModel {
	if c.models[key] == nil {
		c.models[key] = []*holdModel{newHoldModel(c.plan, c.now)}
	}
	return c.models[key]
}

// make makes calls at the same time. One that is to die is the only one of its process.
func (c *holderCrowd) make(calls []madeCall) {
	numbers := make([]int, len(calls))
	for i, m := range calls {
		numbers[i] = c.processes[m.process].tell(holderOrder{Now: c.now, Dies: strings.TrimSuffix(m.dies, "while"), Call: m.StoreCall})
	}
	for i := range calls {
		if m := &calls[i]; m.dies == "while" {
			_ = c.processes[m.process].cmd.Process.Kill()
		}
	}
	for i := range calls {
		m := &calls[i]
		p := c.processes[m.process]
		r, ok := p.next()
		if !ok {
			require.NotEmpty(c, m.dies, "a process has died by itself")
			c.replace(m.process)
			continue
		}
		at := i // calls of one process may be answered in any order
		for numbers[at] != r.Number || calls[at].process != m.process {
			at++
			require.Less(c, at, len(calls), "report %d", r.Number)
		}
		calls[i], calls[at], numbers[at] = calls[at], calls[i], numbers[i]
		m.answer = new(holdAnswer)
		*m.answer = answerOf(m.Op, &r.Result)
		if r.Error == "" {
			require.Equal(c, FromRedis, r.Result.Source)
		}
		if m.dies != "" { // it was faster
			c.replace(m.process)
		}
	}
}

// replace starts a process in the place of one that dies.
func (c *holderCrowd) replace(at int) {
	p := c.processes[at]
	for ok := true; ok; {
		_, ok = p.next()
	}
	p.gone(c.server)
	c.processes[at] = startHolder(c.T, c.server.addr)
	c.processes[at].openLimit(c.prefix, &c.limit)
	c.died++
}

// judge demands an order of the calls.
func (c *holderCrowd) judge(calls []madeCall) {
	of := map[string][]madeCall{}
	for _, m := range calls {
		of[m.Key] = append(of[m.Key], m)
		answer := "died " + m.dies
		if m.answer != nil {
			answer = fmt.Sprintf("%+v", *m.answer)
		}
		c.log = append(c.log, fmt.Sprintf("process %d at %d: %v %s of %s, cost %d, TTL %v, remember %v: %s", m.process, c.now-startMicros, m.Op, m.HoldID, m.Key, m.Cost, m.TTL, m.Remember, answer))
	}
	for key, calls := range of {
		known, after := map[string]bool{}, []*holdModel(nil)
		for _, m := range c.of(key) {
			for _, next := range orders(m, calls, c.now) {
				if text := next.text(); !known[text] {
					known[text] = true
					after = append(after, next)
				}
			}
		}
		require.NotEmpty(c, after, "no order of the last %d calls explains their answers:\n%s", len(calls), strings.Join(c.log[max(0, len(c.log)-30):], "\n"))
		c.models[key] = after
		if len(calls) > 1 {
			c.together++
		}
	}
}

// draw draws up to four calls, and how one of their processes dies, or that none does.
func (c *holderCrowd) draw(i int, greedy bool) (calls []madeCall) {
	first := func(key string) *holdModel { return c.of(key)[0] }
	for range 1 + c.rng.IntN(4) {
		m := madeCall{StoreCall: holdCall(c.rng, i, c.limit.Limit, greedy, first), process: c.rng.IntN(3)}
		calls = append(calls, m)
	}
	if c.rng.IntN(12) == 0 {
		calls[0].dies = []string{"before", "after", "while"}[c.rng.IntN(3)]
		for i := range calls[1:] {
			if m := &calls[1+i]; m.process == calls[0].process {
				m.process = (m.process + 1) % 3
			}
		}
	}
	return calls
}

// again makes the calls of processes that have died again, of others.
func (c *holderCrowd) again(calls []madeCall) {
	for _, m := range calls {
		if m.answer == nil && (m.Op == OpHold || m.Op == OpSettle) {
			again := []madeCall{{StoreCall: m.StoreCall, process: (m.process + 1) % 3}}
			c.make(again)
			c.judge(again)
		}
	}
}

// TestHolds_Processes: three processes, some of which are killed in the middle and started again, make calls of holds
// at the same time: of their own and of those of the others. For each key there is an order in which the calls return
// what they have returned, one after the other. What was used is within WorstCase, and the units that holds have used
// beyond theirs.
func TestHolds_Processes(t *testing.T) {
	t.Parallel() // it mostly waits
	eachServer(t, func(t *testing.T, s *server) {
		rng := seeded.Rand(t)
		c := newHolderCrowd(t, rng, s)
		for _, a := range holdVariants {
			for range depth.Of(1, 3, 10) {
				limit, greedy := holdLimit(rng, a), rng.IntN(3) == 0
				c.begin(LimitConfig{Algorithm: a, Limit: limit, MaxHolds: 1000})
				for i := range 60 {
					c.now += rng.Int64N(1 + 1<<rng.IntN(20))
					calls := c.draw(i, greedy)
					c.make(calls)
					c.judge(calls)
					c.again(calls)
				}
				c.end()
			}
		}
		t.Logf("%d processes died; %d times calls of a key were made at the same time", c.died, c.together)
		require.Positive(t, c.died)
		require.Positive(t, c.together)
	})
}

// end lets all holds lapse, and demands that what was used is within bounds.
func (c *holderCrowd) end() {
	for _, models := range c.models {
		for _, m := range models {
			m.goOn(c.now + int64(time.Minute/time.Microsecond))
			m.bounded(c.T, c.plan.worstCase)
		}
	}
}
