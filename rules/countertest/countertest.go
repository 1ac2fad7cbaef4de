// Package countertest is the suite that every implementation of counts runs: the memory of an engine, package rulestore,
// and whoever implements rules.Store. MEANING.md of package rules gives the meaning of each call; here the same is a table of
// cases with their numbers (cases.txt), and an exact model with which random histories are compared.
//
//	func TestStore(t *testing.T) {
//		countertest.Run(t, func(t *testing.T) countertest.Counts {
//			store := newStore(t)
//			return countertest.Counts{Processes: 2, Config: func() rules.Config { return rules.Config{Store: store} }}
//		})
//	}
//
// A case, and a random history that fails, is a text: see Replay.
package countertest

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rules"
)

// Counts are counts that no engine has used.
type Counts struct {
	// Config returns the configuration of an engine on these counts. Each call is for another process.
	Config func() rules.Config
	// Processes is how many engines share the counts; 0 means 1.
	Processes int
	// Now is the clock of the counts, and Pass lets at least so much time pass: some milliseconds. Without them time is the
	// system's.
	Now  func() time.Time
	Pass func(time.Duration)
	// Exact says that Now stands still but for Pass, so that times are compared to the nanosecond, and may pass by hours.
	Exact bool
	// Without are the operations that the counts do not have, or have in another way, and why. The suite makes no call that needs
	// them, but holds must then fail with that error.
	Without map[Operation]error
	// Cut, if not nil, makes the counts unreachable, until the function that it returns is called. Calls then fail with
	// rules.ErrStore: the engines are configured not to go on by themselves.
	Cut func() (mend func())
}

// An Operation is an ability that not all counts have.
type Operation string

// The operations.
const (
	// HoldsOfThen are holds of rules with then, and HoldsOfLog of rules with algorithm: sliding-log.
	HoldsOfThen Operation = "holds of then"
	HoldsOfLog  Operation = "holds of sliding-log"
	// Refunds give hits back.
	Refunds Operation = "refunds"
	// DeniedHits are the hits of windows above the limit, which count.
	DeniedHits Operation = "denied hits"
	// Resets make keys fresh, and Extensions add to holds.
	Resets     Operation = "resets"
	Extensions Operation = "extensions"
	// Lapses end holds as soon as their TTL is over.
	Lapses Operation = "lapses"
	// OtherHolds are calls about holds that there are not, or not any more, or with other words.
	OtherHolds Operation = "calls about other holds"
)

//go:embed cases.txt
var cases string

// Run runs the suite. fresh returns fresh counts, and is called for each case.
func Run(t *testing.T, fresh func(t *testing.T) Counts) {
	t.Run("cases", func(t *testing.T) {
		for _, c := range sections(cases) {
			t.Run(c.name, func(t *testing.T) { runCase(t, c.text, fresh(t)) })
		}
	})
	t.Run("histories", func(t *testing.T) { runHistories(t, fresh) })
	t.Run("at once", func(t *testing.T) { runAtOnce(t, fresh) })
	t.Run("cut off", func(t *testing.T) { runCutOff(t, fresh) })
	t.Run("refused holds", func(t *testing.T) { runRefused(t, fresh(t)) })
}

// runRefused makes the holds that counts do not have.
func runRefused(t *testing.T, c Counts) {
	d := common(t, c)
	for operation, line := range map[Operation]string{HoldsOfThen: "hold a p=u:1", HoldsOfLog: "hold a l=u:1"} {
		call, err := parseCall(line)
		if err != nil {
			t.Fatal(err)
		}
		if want := c.Without[operation]; want != nil {
			if err := d.engines[0].Hold(&rules.Hold{ID: "a", Request: call.request()}, new(rules.Response)); !errors.Is(err, want) {
				t.Errorf("%s: %v; want %v", line, err, want)
			}
		}
	}
}

// section is a case: its name and its text.
type section struct{ name, text string }

func sections(text string) (out []section) {
	for _, part := range strings.Split("\n"+text, "\n# ")[1:] {
		name, lines, _ := strings.Cut(part, "\n")
		out = append(out, section{name, lines})
	}
	return out
}

// runCase makes the calls of a text, which has the answer of each. The model answers the same.
func runCase(t *testing.T, text string, c Counts) {
	t.Helper()
	s, err := read(text)
	if err != nil {
		t.Fatal(err)
	}
	if at, why := s.missing(c); at >= 0 {
		t.Skipf("%s: %v", s.calls[at].text, why)
	}
	if s.exact && !c.Exact {
		t.Skip("the time of these counts is not the test's")
	}
	s.check(t, c)
}

// Replay makes the calls of a text on counts, and compares them with the model. A text has lines:
//
//	rule KEY[=VALUE] UNIT REQUESTS [ALGORITHM] [shadow] [quota] [share] [admitted] [unlimited] [calendar] [name=N] [then=N] [debt=N] [weights=A*N+B*M]
//	set                              other rules, for reload
//	stop, shadow                     Config.StopWhenOver, Config.Shadow
//	exact                            only for counts whose time is exact
//	[@N] take DESCRIPTOR:HITS,...    Engine.Decide of the N-th process; a minus before HITS gives them back
//	[@N] hold|extend|settle|release ID DESCRIPTOR:HITS,... [back] [step=S] [ttl=T]
//	reset DESCRIPTOR,...
//	reload N                         the N-th set of rules, from 0
//	pass DURATION
//	series RULE                      hits: total within over shadow refunded absorbed estimated settled
//
// A DESCRIPTOR is KEY=VALUE[+KEY=COUNT]...[@REQUESTS/UNIT], with an override behind the @. a/ before the first is for the
// domain a, which has the same rules and is atomic, and o/ for a domain without rules. Behind -> a line has the outcome: the code, and for
// each descriptor the remaining hits, with an x if it is over its limit, an X if it is for ever, an o if it is over and passes.
func Replay(t *testing.T, text string, c Counts) {
	t.Helper()
	s, err := read(text)
	if err != nil {
		t.Fatal(err)
	}
	s.check(t, c)
}

// check fails the test at the first difference between counts and model.
func (s *script) check(t *testing.T, c Counts) {
	t.Helper()
	if fault := s.compare(t, c); fault != "" {
		t.Fatal(fault)
	}
}

var file = flag.String("countertest.replay", "", "the file of a history that has failed, to be made again")

// runHistories compares random histories with the model.
func runHistories(t *testing.T, fresh func(t *testing.T) Counts) {
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			t.Fatal(err)
		}
		Replay(t, string(text), fresh(t))
		return
	}
	rounds := depth.Of(100, 400, 1500) // a round takes 1 ms in memory
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			r := seeded.Rand(t)
			for i := range rounds {
				c := fresh(t)
				s := kind.history(r, c).with(c)
				if fault := s.compare(t, c); fault != "" {
					s, fault = s.shrink(t, fresh, fault)
					t.Fatalf("%s\n%s\n%s", fault, s, s.save(t))
				}
				if !c.Exact && i+1 == rounds/10 {
					break
				}
			}
		})
	}
}

// save writes the script to a file, and says how to make its calls again.
func (s *script) save(t *testing.T) string {
	name := filepath.Join(os.TempDir(), strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())+".txt")
	if err := os.WriteFile(name, []byte(s.String()), 0o644); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("-countertest.replay=%s makes it again", name)
}

// compare makes all calls on counts and in the model. It returns the first difference, or "".
func (s *script) compare(t *testing.T, c Counts) (fault string) {
	d := newDriver(t, s, c)
	m := newModel(s, d.now)
	slack := time.Minute + time.Second
	switch {
	case c.Exact && s.holds(): // a settlement of a bucket after another charge is exact but for the time since then
		slack = time.Second
	case c.Exact:
		slack = 0
	}
	for i := range s.calls {
		call := &s.calls[i]
		want := m.call(call) // before: a bucket gains nothing that shows between the two
		got := d.call(call)
		if call.want != "" && call.want != got.text {
			return fmt.Sprintf("%s -> %s; got %s", call.text, call.want, got.text)
		}
		if difference := want.differs(got, slack); difference != "" {
			return call.text + ": " + difference
		}
	}
	return ""
}

// shrink leaves out the calls without which the history still fails.
func (s *script) shrink(t *testing.T, fresh func(t *testing.T) Counts, fault string) (*script, string) {
	for size := len(s.calls) / 2; size > 0; {
		smaller := false
		for at := 0; at+size <= len(s.calls); {
			less := *s
			less.calls = slices.Delete(slices.Clone(s.calls), at, at+size)
			c := fresh(t)
			if f := less.with(c).compare(t, c); f != "" {
				s, fault, smaller = &less, f, true
			} else {
				at += size
			}
		}
		if !smaller || size > len(s.calls) {
			size /= 2
		}
	}
	return s, fault
}
