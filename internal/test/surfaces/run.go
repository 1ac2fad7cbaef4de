package surfaces

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// Test runs all rows.
func (s Surface) Test(t *testing.T) {
	unused := maps.Clone(s.Cannot)
	for _, row := range rows {
		prefixes := s.cannot(row.name)
		for _, prefix := range prefixes {
			delete(unused, prefix)
		}
		if len(prefixes) == 0 {
			t.Run(row.name, func(t *testing.T) { row.run(&run{T: t, surface: s}) })
		}
	}
	assert.Empty(t, unused, "Cannot names rows that there are not")
}

// cannot returns the entries that say why the surface cannot run a row.
func (s Surface) cannot(name string) (prefixes []string) {
	for prefix := range s.Cannot {
		if strings.HasPrefix(name, prefix) || strings.HasPrefix(strings.TrimPrefix(name, settled), prefix) {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// patience is for real goroutines and connections.
const patience = 20 * time.Second

// A run is one of a row.
type run struct {
	*testing.T
	surface Surface
	setup   *Setup
	door    Door
	ctx     context.Context
}

func (r *run) inFlight() bool { return r.surface.Refuses == "" }

// policy returns a policy on the clock of the run.
func (r *run) policy(name string, c sluice.Config) *Policy {
	c.Clock = r.clock()
	l, err := sluice.New(c)
	require.NoError(r, err)
	return &Policy{Name: name, Config: c, Limiter: l, setup: r.setup}
}

func (r *run) clock() *sluice.ManualClock {
	if r.setup == nil {
		r.setup = &Setup{Handler: newHandler(), Functions: map[string]bool{}, Clock: sluice.NewManualClock(time.Unix(1_790_000_123, 456_789_012))}
	}
	return r.setup.Clock
}

const (
	plenty = 100 // of the policy "all"
	few    = 2   // of the policy "at-once"
)

func (r *run) rate(name string, n int) *Policy {
	return r.policy(name, sluice.Config{Limit: sluice.PerHour(n)})
}

func (r *run) atOnce() *Policy {
	return r.policy("at-once", sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(few, time.Hour)})
}

// open starts the surface with the policies that it takes.
func (r *run) open(policies ...*Policy) {
	require.NoError(r, r.start(policies...))
}

func (r *run) start(policies ...*Policy) (err error) {
	s := r.setup
	s.Policies = policies
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx = ctx
	r.door, err = r.surface.Open(r.T, s)
	r.T.Cleanup(func() { // before what Open has registered, which waits for handlers
		s.arm.set("")
		s.Handler.going.pass()
		s.Handler.closing.pass()
		cancel()
	})
	return err
}

// A call is one that has been made.
type call struct {
	running bool // in the handler, once; else it has ended
	cancel  context.CancelFunc
	done    chan Outcome
	Outcome
}

// call makes a call, and returns when its handler has begun or it has ended.
func (r *run) call() *call {
	ctx, cancel := context.WithCancel(r.ctx)
	c := &call{cancel: cancel, done: make(chan Outcome, 1)}
	door := r.door
	go func() { c.done <- door.Call(ctx) }()
	select {
	case <-r.setup.Handler.begun:
		c.running = true
		return c
	case c.Outcome = <-c.done:
	case <-time.After(patience):
		require.Fail(r, "a call neither begins nor ends")
	}
	select {
	case <-r.setup.Handler.begun: // and has ended at once
		c.running = true
		c.done <- c.Outcome
	default:
		r.await(r.setup.Handler.left, "the limit to return from a call that does not run")
	}
	return c
}

// hold makes n calls that run in their handlers.
func (r *run) hold(n int) (held []*call) {
	for i := range n {
		c := r.call()
		require.True(r, c.running, "call %d of %d ended with %+v", i+1, n, c.Outcome)
		held = append(held, c)
	}
	return held
}

// refuse makes n calls that are denied.
func (r *run) refuse(n int) (last Outcome) {
	for range n {
		c := r.call()
		require.False(r, c.running, "more calls run than may")
		require.NoError(r, c.Err)
		require.True(r, c.Denied)
		last = c.Outcome
	}
	return last
}

// soon is the longest hint of a denial that waits for other calls to end.
const soon = 10 * time.Second

// refuseForNow makes calls that are denied since other calls run. The hint is short: nobody knows when these end.
func (r *run) refuseForNow() {
	o := r.refuse(3)
	require.Positive(r, o.RetryAfter)
	require.LessOrEqual(r, o.RetryAfter, soon)
}

// end waits for the end of a call that has run.
func (r *run) end(c *call) {
	select {
	case c.Outcome = <-c.done:
	case <-time.After(patience):
		require.Fail(r, "a call does not end")
	}
}

// eventually waits until a condition holds.
func (r *run) eventually(holds func() bool, what string, args ...any) {
	ended := time.After(patience)
	for !holds() {
		select {
		case <-ended:
			require.Fail(r, "in vain for "+fmt.Sprintf(what, args...))
		case <-time.After(time.Millisecond):
		}
	}
}

func (r *run) await(event <-chan struct{}, what string) {
	select {
	case <-event:
	case <-time.After(patience):
		require.Fail(r, "in vain for "+what)
	}
}

// left waits until the limit has returned from so many calls that have run.
func (r *run) left(n int) {
	for range n {
		r.await(r.setup.Handler.left, "the limit to return")
	}
}

func (r *run) remaining(p *Policy) int {
	if r.door.Remaining != nil {
		return r.door.Remaining(p)
	}
	return p.Limiter.Key(Key).Peek(0).Remaining
}

// remains waits until so much remains to a policy.
func (r *run) remains(want int, p *Policy) {
	if !slices.Contains(r.setup.Policies, p) {
		return
	}
	r.eventually(func() bool { return r.remaining(p) == want }, "%d to remain of %s", want, p.Name)
}

// ran demands that so many calls have run so far.
func (r *run) ran(want int) {
	require.EqualValues(r, want, r.setup.Handler.ran.Load(), "calls that have run")
}
