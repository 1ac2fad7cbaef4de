package surfaces

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// A row is one behaviour: every surface has it, or says why it cannot.
type row struct {
	name string
	run  func(*run)
}

// settled begins the names of rows with a Settle.
const settled = "settled: "

// rows is the table.
var rows = func() (all []row) {
	all = append(all, row{"in-flight or a clear refusal", refuses})
	for _, e := range ends {
		all = append(all, row{e.name, e.run})
		e.settles = true
		all = append(all, row{settled + e.name, e.run})
	}
	for _, f := range functions {
		all = append(all, row{"panics in " + f.name, f.run})
		if f.name != "Settle" {
			f.settles = true
			all = append(all, row{settled + "panics in " + f.name, f.run})
		}
	}
	for _, la := range traces.Layouts {
		if la.Few.Rate == 10 {
			all = append(all, row{"algorithm " + la.Name, algorithm(la).run})
		}
	}
	all = append(all, queues...)
	return append(all,
		row{"windows by a calendar", dated},
		row{"outlasts the lease", outlasts},
		row{"client gone before", goneBefore},
		row{"denied by the second policy", second},
		row{"denials of another policy", bans},
		row{"hint of a denial", hints},
		row{"shadow", shadow},
		row{"shadow in flight", shadowInFlight},
		row{"shadow whose Key fails", shadowKeyFails},
		row{"Key fails", keyFails},
		row{"remote", remote},
		row{"remote that does not answer", remoteAway},
		row{"remote that panics", remotePanics},
		row{"remote in shadow", remoteShadow},
		row{settled + "remote", remoteSettled},
		row{settled + "by one policy", settledByOne},
		row{"limit that calls bring", brings},
	)
}()

// refuses: a surface takes an InFlight limiter, or its error names one that does.
func refuses(r *run) {
	r.clock()
	err := r.start(r.atOnce())
	if !r.inFlight() {
		require.ErrorContains(r, err, r.surface.Refuses)
		return
	}
	require.NoError(r, err)
	r.through(1)
}

// asCharged is returned by a Settle that changes nothing.
const asCharged = -1

// functions are the user's that a surface calls.
var functions = []function{
	{name: "Key"}, {name: "Cost"}, {name: "Limit"}, {name: "Skip"}, {name: "Charges"}, {name: "Client"}, {name: "OnMissingHeader"},
	{name: "PartitionKey", late: true}, {name: "OnDecision", late: true},
	{name: "OnDenied"}, {name: "Settle", after: true, late: true},
}

type function struct {
	name    string
	settles bool // there is a Settle beside it
	late    bool // it is called when the call has been charged, of which a rate gets nothing back
	after   bool // it is called when the handler has run
}

// run has a function panic more often than calls fit, with a recovery around. Nothing stays in flight.
func (f function) run(r *run) {
	r.clock()
	const times = 2*few + 1
	r.setup.Functions = map[string]bool{f.name: true, "Settle": f.settles || f.after}
	r.setup.Final = asCharged
	all, atOnce := r.rate("all", plenty), r.atOnce()
	last := atOnce
	if !r.inFlight() {
		last = r.rate("last", few)
	}
	policies := []*Policy{all, last}
	switch {
	case r.surface.One:
		policies = policies[1:]
	case !r.inFlight() && f.name != "OnDenied":
		policies = policies[:1]
	}
	r.open(policies...)
	var held []*call
	if f.name == "OnDenied" {
		held = r.hold(few)
	}
	r.setup.arm.set(f.name)
	for range times {
		c := r.call()
		require.Equal(r, f.after, c.running)
		if c.running {
			ending{}.finish(r, []*call{c})
		} else {
			require.False(r, c.Denied, "it is told that it is denied")
			require.Error(r, c.Err)
		}
	}
	require.Equal(r, times, r.setup.arm.count())
	r.setup.arm.set("")
	ending{}.finish(r, held)
	r.remains(few, atOnce)
	charged := len(held)
	if f.late || f.name == "OnDenied" && r.surface.Each && last != atOnce {
		charged += times
	}
	r.remains(plenty-charged, all)
	if last == atOnce {
		r.fresh(atOnce)
	}
}

// algorithm is a limit of ten units of each kind.
type algorithm traces.Layout

func (a algorithm) run(r *run) {
	r.clock()
	var kind sluice.Algorithm
	o := a.Options
	require.NoError(r, kind.UnmarshalText([]byte(oracle.Config{Algorithm: o.Algorithm, Interval: o.Interval, FirstCharge: o.FirstCharge}.Name())))
	p := r.policy(a.Name, sluice.Config{Algorithm: kind, Limit: sluice.Per(a.Few.Rate, a.Few.Period).WithBurst(a.Few.Burst), Offset: min(o.Offset, a.Few.Period-1)})
	if kind == sluice.InFlight && !r.inFlight() {
		require.ErrorContains(r, r.start(p), r.surface.Refuses)
		return
	}
	r.open(p)
	if kind == sluice.InFlight {
		r.remains(ten, p)
		held := r.hold(ten)
		r.refuseForNow()
		ending{}.finish(r, held)
		r.remains(ten, p)
		return
	}
	spends(r, p, time.Hour)
}

// dated: a limit of ten units a month by the calendar is the limiter's matter, and no surface's.
func dated(r *run) {
	r.clock()
	month := sluice.Calendar{Unit: sluice.CalendarMonth, Zone: "Asia/Seoul", Day: 15}
	p := r.policy("by-the-calendar", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(ten, month)})
	r.open(p)
	_, ends, err := month.Window(time.Unix(0, r.clock().Now()))
	require.NoError(r, err)
	spends(r, p, 62*24*time.Hour)
	after, _, err := month.Window(time.Unix(0, r.clock().Now()))
	require.NoError(r, err)
	require.True(r, after.After(ends))
}

// ten is the limit of algorithm and dated.
const ten = 10

// spends uses up ten units, and again after the units have come back, at the latest after some time more.
func spends(r *run, p *Policy, after time.Duration) {
	const limit, tries = ten, 15
	r.remains(limit, p)
	r.through(limit)
	wait := r.refuse(tries - limit).RetryAfter
	require.Positive(r, wait)
	r.remains(0, p)
	r.clock().Advance(wait)
	r.through(1)
	r.clock().Advance(after)
	r.through(limit)
	r.refuse(1)
	r.ran(limit + 1 + limit)
}

// outlasts: units of calls that run for longer than the limit's Period stay theirs. Each renewal is waited for, which comes in
// real time; the limiter's clock stands still meanwhile.
func outlasts(r *run) {
	const period = 30 * time.Millisecond
	r.clock()
	atOnce := r.policy("at-once", sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(few, period)})
	if !r.inFlight() {
		require.ErrorContains(r, r.start(atOnce), r.surface.Refuses)
		return
	}
	r.open(atOnce)
	held := r.hold(few)
	for range 5 {
		lapse := atOnce.Limiter.Key(Key).Peek(0).ResetAfter
		r.clock().Advance(period)
		r.eventually(func() bool { return atOnce.Limiter.Key(Key).Peek(0).ResetAfter >= lapse }, "the units to be renewed")
	}
	r.refuseForNow()
	r.remains(0, atOnce)
	ending{}.finish(r, held)
	r.fresh(atOnce)
}

// through makes n calls that run, one after another.
func (r *run) through(n int) {
	for range n {
		ending{}.finish(r, r.hold(1))
	}
}

// settledByOne: a call that one policy settles stays charged to the others, or costs there as all are told, with a Remote
// and without. A call that it has not charged is not asked about.
func settledByOne(r *run) {
	for _, far := range []bool{false, true} {
		for _, c := range []struct {
			own, common int
			wantOwn     int // of each call
			want        int
		}{{0, asCharged, 0, 1}, {3, asCharged, 3, 1}, {asCharged, 0, 1, 0}, {0, 2, 0, 2}} {
			r.setup = nil
			r.clock()
			r.setup.Functions, r.setup.Final = map[string]bool{"Settle": c.common != asCharged}, c.common
			all, failed := r.rate("all", plenty), r.rate("failed", plenty)
			if failed.Final = &c.own; far {
				failed.Remote = &Remote{p: failed}
			}
			r.open(all, failed)
			r.through(4)
			r.remains(plenty-4*c.wantOwn, failed)
			r.remains(plenty-4*c.want, all)
		}
	}
	if r.inFlight() {
		r.setup = nil
		r.clock()
		atOnce := r.atOnce()
		atOnce.Final = new(int)
		require.ErrorContains(r, r.start(atOnce), "Settle")
	}
}

// goneBefore: the client's context has ended when it calls.
func goneBefore(r *run) {
	r.clock()
	all := r.rate("all", plenty)
	r.open(all)
	r.through(1)
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	o := r.door.Call(ctx)
	require.Error(r, o.Err)
	require.False(r, o.Denied)
	r.ran(1)
	r.remains(plenty-1, all)
}

// second: a call that the second policy denies takes nothing of the first, unless each counts by itself.
func second(r *run) {
	r.clock()
	first, last := r.rate("all", plenty), r.rate("last", 3)
	r.open(first, last)
	r.through(3)
	r.refuse(2)
	left := plenty - 3
	if r.surface.Each {
		left -= 2
	}
	r.remains(left, first)
	if !r.inFlight() {
		return
	}
	r.setup = nil
	r.clock()
	atOnce, last := r.atOnce(), r.rate("last", 3)
	r.open(atOnce, last)
	r.through(3)
	r.refuse(2)
	r.remains(few, atOnce)
	r.ran(3)
}

// bans: three calls that one policy denies ban the key by another one, at once, also when the first has units again. A policy that
// does not exist is refused.
func bans(r *run) {
	const ban = 24 * time.Hour
	fars := []bool{false, true}
	if len(r.surface.cannot("remote")) > 0 {
		fars = fars[:1]
	}
	for _, far := range fars {
		for _, first := range []bool{false, true} {
			r.setup = nil
			r.clock()
			throttle, bans := r.rate("throttle", 2), r.policy("bans", sluice.Config{Limit: sluice.PerHour(3), BlockFor: ban})
			if bans.CountsDenialsOf = "throttle"; far {
				bans.Remote = &Remote{p: bans}
			}
			policies := []*Policy{throttle, bans}
			if first {
				policies = []*Policy{bans, throttle}
			}
			r.open(policies...)
			r.through(2)
			r.remains(3, bans)
			require.LessOrEqual(r, r.refuse(2).RetryAfter, time.Hour)
			r.remains(1, bans)
			require.GreaterOrEqual(r, r.refuse(1).RetryAfter, ban, "the third one says so")
			r.clock().Advance(ban - time.Second)
			require.LessOrEqual(r, r.refuse(1).RetryAfter, 2*time.Second, "it is not longer for calls in the meantime")
			left := 2
			if r.surface.Each {
				left--
			}
			r.remains(left, throttle)
			r.clock().Advance(time.Second)
			r.through(1)
			r.clock().Advance(time.Hour)
			r.through(2)
			r.refuse(1)
			r.remains(2, bans)
			r.ran(5)
		}
	}
	r.setup = nil
	r.clock()
	lost := r.rate("lost", 3)
	lost.CountsDenialsOf = "nobody"
	require.ErrorContains(r, r.start(r.rate("throttle", 2), lost), `"nobody"`)
}

// hints: a denial tells a wait up to a bound, and some random time more, and decides as without these.
func hints(r *run) {
	const most, tries = 10 * time.Second, 30
	for _, jitter := range []time.Duration{0, 5 * time.Second} {
		r.setup = nil
		r.clock()
		r.setup.MaxRetryAfter, r.setup.RetryJitter = most, jitter
		p := r.policy("a-day", sluice.Config{Limit: sluice.PerDay(1)})
		r.open(p)
		r.through(1)
		told := map[time.Duration]bool{}
		for range tries {
			wait := r.refuse(1).RetryAfter
			require.GreaterOrEqual(r, wait, most)
			require.LessOrEqual(r, wait, most+jitter)
			told[wait] = true
		}
		require.Equal(r, jitter > 0, len(told) > 1)
		r.clock().Advance(24*time.Hour - 1)
		r.refuse(1)
		r.clock().Advance(1)
		r.through(1)
		r.ran(2)
	}
}

// shadow: a policy in shadow mode denies nobody, and policies beside it do. It counts calls that they admit.
func shadow(r *run) {
	r.clock()
	silent, last := r.policy("silent", sluice.Config{Limit: sluice.PerHour(1), Shadow: true}), r.rate("last", 3)
	r.beside(silent, last)
	r.remains(0, silent)
	if r.surface.One {
		return
	}
	r.setup = nil
	r.clock()
	silent, last = r.policy("silent", sluice.Config{Limit: sluice.PerHour(plenty), Shadow: true}), r.rate("last", 3)
	r.beside(silent, last)
	left := plenty - 3
	if r.surface.Each {
		left -= 2
	}
	r.remains(left, silent)
}

// beside makes calls under a policy in shadow mode and one of 3 calls.
func (r *run) beside(silent, last *Policy) {
	if r.surface.One {
		r.open(silent)
		r.through(5)
		r.ran(5)
		return
	}
	r.open(silent, last)
	r.through(3)
	r.refuse(2)
	r.ran(3)
}

// shadowInFlight: more calls than the limit run at once, and the limit is whole again afterwards.
func shadowInFlight(r *run) {
	r.clock()
	silent := r.policy("silent", sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour), Shadow: true})
	if !r.inFlight() {
		require.ErrorContains(r, r.start(silent), r.surface.Refuses)
		return
	}
	r.open(silent)
	for range 2 {
		held := r.hold(3)
		r.remains(0, silent)
		ending{}.finish(r, held)
		r.remains(1, silent)
	}
}

// shadowKeyFails: the error of a Key of a policy in shadow mode denies nobody.
func shadowKeyFails(r *run) {
	r.clock()
	silent, last := r.policy("silent", sluice.Config{Limit: sluice.PerHour(1), Shadow: true}), r.rate("last", 3)
	silent.fails = true
	r.beside(silent, last)
}

// keyFails: a call without a key does not run, and takes nothing.
func keyFails(r *run) {
	r.clock()
	all, last := r.rate("all", plenty), r.rate("last", plenty)
	last.fails = true
	policies := []*Policy{all, last}
	if r.surface.One {
		policies = policies[1:]
	}
	r.open(policies...)
	for range 3 {
		c := r.call()
		require.False(r, c.running)
		require.False(r, c.Denied)
		require.Error(r, c.Err)
	}
	r.remains(plenty, all)
	r.remains(plenty, last)
}
