package surfaces

import (
	"time"

	"github.com/stretchr/testify/require"
)

// ends are the ways in which a call can end.
var ends = []ending{
	{name: "returns", end: Returns},
	{name: "error that is answered", end: Answered},
	{name: "error that nobody answers", end: Unanswered},
	{name: "handler panics", end: Panics},
	{name: "client gone while it runs", end: Returns, gone: true},
	{name: "client gone and an error that nobody answers", end: Unanswered, gone: true},
	{name: "hijacked", end: Hijacks, lingers: true},
	{name: "streaming in the handler", end: Streams, lingers: true, inside: true},
	{name: "streaming after the handler", end: StreamsOn, lingers: true},
	{name: "timeout", end: TimesOut},
}

type ending struct {
	name    string
	end     End
	gone    bool // the client has, while the handler runs
	lingers bool // beyond the handler's end, until Handler.Closing
	inside  bool // it lingers in the handler
	settles bool // for nothing, as far as somebody answers
}

// run has few calls at once run, more of them denied, and many come one after another. What they take of a rate is as
// many as have run, and all that is in flight comes back.
func (e ending) run(r *run) {
	r.clock()
	r.setup.TimesOut = e.end == TimesOut
	r.setup.Functions = map[string]bool{"Settle": e.settles}
	r.setup.Final = 0
	all, atOnce := r.rate("all", plenty), r.atOnce()
	policies := []*Policy{all, atOnce}
	switch {
	case !r.inFlight():
		policies = policies[:1]
	case r.surface.One:
		policies = policies[1:]
	}
	r.open(policies...)
	held := r.hold(few)
	if r.inFlight() {
		r.refuseForNow()
	}
	r.remains(0, atOnce)
	r.remains(plenty-few, all)
	ran := few
	if r.inFlight() && !e.gone && e.end != TimesOut { // which end all of them
		held = e.finishOne(r, held)
		r.remains(1, atOnce)
		held = append(held, r.hold(1)...)
		r.refuseForNow()
		ran++
	}
	e.finish(r, held)
	r.remains(few, atOnce)
	for range 2*few + 1 {
		e.finish(r, r.hold(1))
		r.remains(few, atOnce)
	}
	r.fresh(atOnce)
	ran += 2*few + 1 + few
	r.ran(ran)
	switch {
	case !e.settles:
		r.remains(plenty-ran, all)
	case e.end == Unanswered:
		r.remains(plenty-ran+few, all) // the last ones are answered
	default:
		r.remains(plenty, all)
	}
}

// finishOne has one of the held calls end, and returns the rest.
func (e ending) finishOne(r *run, held []*call) (others []*call) {
	h := r.setup.Handler
	defer h.closing.stop()
	h.end.Store(int32(e.end))
	select {
	case h.one <- struct{}{}:
	case <-time.After(patience):
		require.Fail(r, "no handler waits")
	}
	e.pause(r, 1, true)
	select {
	case <-held[0].done:
		return held[1:]
	case <-held[1].done:
		return held[:1]
	case <-time.After(patience):
		require.Fail(r, "a call does not end")
		return nil
	}
}

// pause lets n calls go on that have been let go, and linger. The next is denied meanwhile, if it is to be.
func (e ending) pause(r *run, n int, full bool) {
	h := r.setup.Handler
	if e.lingers {
		for range n {
			r.await(h.seen, "the client to see a response begin")
		}
	}
	if !e.inside {
		r.left(n)
	}
	if e.lingers && full && r.inFlight() {
		r.refuseForNow()
	}
	h.closing.pass()
	if e.inside {
		r.left(n)
	}
}

// finish has calls end that are held. As long as they linger, the next is denied.
func (e ending) finish(r *run, held []*call) {
	h := r.setup.Handler
	defer h.going.stop()
	defer h.closing.stop()
	h.end.Store(int32(e.end))
	if e.gone {
		for _, c := range held {
			c.cancel()
			r.end(c)
			require.Error(r, c.Err)
		}
	}
	h.going.pass()
	e.pause(r, len(held), len(held) == few)
	if e.gone {
		return
	}
	for _, c := range held {
		r.end(c)
		require.False(r, c.Denied)
	}
}

// fresh demands that exactly few calls run at once, as if there had been none before.
func (r *run) fresh(atOnce *Policy) {
	h := r.setup.Handler
	h.end.Store(int32(Returns))
	held := r.hold(few)
	if r.inFlight() {
		r.refuseForNow()
	}
	r.remains(0, atOnce)
	ending{}.finish(r, held)
	r.remains(few, atOnce)
}
