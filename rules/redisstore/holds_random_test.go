package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/seeded"
	"github.com/sluice-go/sluice/rules"
)

// TestHolds_AsMemory: random calls about holds, beside plain calls, resets and reloads, have the same outcome in memory and in Redis:
// errors, codes, what remains, marks and statistics. Nothing lapses meanwhile.
func TestHolds_AsMemory(t *testing.T) {
	eachServer(t, func(t *testing.T, s *redistest.Server) {
		random := seeded.Rand(t)
		rounds := 40
		if testing.Short() {
			rounds = 8
		}
		for i := range rounds {
			var c Config
			c.Prefix = fmt.Sprint("as", i)
			shadow := random.IntN(5) == 0
			head := fmt.Sprintf("domain: d\nsluice: {atomic: %t}\n", random.IntN(3) == 0)
			text := strings.Replace(meaningRules[0], "domain: d\n", head, 1)
			sets := []*rules.Set{load(t, text+meaningRules[1]), load(t, text)}
			shared, err := rules.New(sets[0], rules.Config{Store: newStore(t, s.Addr, c), Shadow: shadow})
			require.NoError(t, err)
			memory, err := rules.New(sets[0], rules.Config{Clock: sluice.NewManualClock(time.Now()), Shadow: shadow})
			require.NoError(t, err)
			calls := holdCalls{t: t, random: random, named: map[string][]string{}}
			var told strings.Builder
			for step := range 60 {
				call := calls.next(sets)
				text, a, b := call(memory)
				_, a2, b2 := call(shared)
				calls.ended[calls.at] = calls.ended[calls.at] || strings.HasPrefix(a, "Code(0)")
				fmt.Fprintln(&told, text, "->", a)
				require.Equal(t, a, a2, "round %d, step %d:\n%s", i, step, told.String())
				require.Equal(t, b, b2, "round %d, step %d: series:\n%s", i, step, told.String())
			}
		}
	})
}

// holdCalls makes random calls.
type holdCalls struct {
	t      *testing.T
	random *rand.Rand
	named  map[string][]string // the descriptors that an id was first used with
	last   holdCall
	lives  [20]int  // of each id; it has another name in each
	ended  [20]bool // it has been settled in this life
	at     int      // the id of the last call
}

// anew gives ids other names: all, or those that have ended.
func (c *holdCalls) anew(all bool) {
	for i := range c.lives {
		if all || c.ended[i] {
			c.lives[i]++
			c.ended[i] = false
		}
	}
	c.last = nil
}

// A holdCall makes a call of an engine. It returns the call as text, its outcome, and the statistics then.
type holdCall func(*rules.Engine) (text, outcome, series string)

func (c *holdCalls) descriptors() (out []string) {
	keys := []string{"w", "f", "c", "i", "p", "sw", "sg", "g", "free", "none"}
	c.random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+c.random.IntN(3)] {
		value := string("uv"[c.random.IntN(8)/7])
		if key == "p" {
			value = "x" + value
		}
		out = append(out, key+"="+value)
	}
	return out
}

func (c *holdCalls) next(sets []*rules.Set) holdCall {
	if c.last != nil && c.random.IntN(6) == 0 {
		return c.last // the same again
	}
	op := pick(c.random, "hold", "hold", "hold", "hold", "hold", "hold", "extend", "extend", "settle", "settle", "settle", "settle", "release", "release", "take", "take", "reset", "reload")
	c.at = c.random.IntN(len(c.lives))
	id, step := fmt.Sprint(c.at, ".", c.lives[c.at]), pick(c.random, "", "1", "2")
	if c.named[id] == nil {
		c.named[id] = c.descriptors()
	}
	of := c.named[id]
	if op == "take" || op == "reset" || c.random.IntN(6) == 0 {
		of = c.descriptors()
	}
	list := ""
	for i, d := range of {
		if i > 0 {
			list += ","
		}
		list += fmt.Sprint(d, ":", []int{0, 1, 2, 3, 8, 40, 120, 1_000_000}[c.random.IntN(8)])
	}
	switch op { // what MEANING.md leaves out
	case "reset":
		c.anew(true)
	case "reload":
		c.anew(false)
	}
	back, n := c.random.IntN(4) == 0, c.random.IntN(2)
	call := func(e *rules.Engine) (text, outcome, series string) {
		h := meaningHold(c.t, id, list)
		h.GiveBack = back && op == "hold"
		var resp rules.Response
		var err error
		switch op {
		case "hold":
			err = e.Hold(h, &resp)
		case "extend":
			h.Step = step
			err = e.Extend(h, &resp)
		case "settle":
			err = e.Settle(h)
		case "release":
			err = e.Release(h)
		case "take":
			err = e.Decide(&h.Request, &resp)
		case "reset":
			err = e.Reset(&h.Request)
		case "reload":
			err = e.Swap(sets[n])
		}
		outcome = fmt.Sprint(resp.Code, resp.WouldDeny, remaining(&resp), " again ", h.Again, " capped ", h.Capped)
		if err != nil {
			outcome = err.Error()
			for errors.Unwrap(err) != nil {
				err = errors.Unwrap(err)
			}
		}
		for _, s := range e.Series() {
			series += fmt.Sprint(s.Path, " ", s.Total, " ", s.Over, " ", s.Shadow, " ", s.Estimated, " ", s.Settled, "\n")
		}
		return fmt.Sprint(op, " ", id, " ", list, " step=", step, " back=", back, " ", n), outcome, series
	}
	if op != "reset" && op != "reload" {
		c.last = call
	}
	return call
}
