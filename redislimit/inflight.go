package redislimit

import (
	"math"

	"github.com/sluice-go/sluice"
)

// inFlight is the shape of InFlight: windows like sliding's, with a step as long as the period, so that the window
// before counts in full until this one has ended.
type inFlight struct{ sliding }

const inFlightLetter = 'f'

func newInFlight(c Config) (shape, error) {
	period, offset, err := wholeMicros(c)
	if err != nil {
		return nil, err
	}
	burst := int64(c.Limit.Rate)
	return inFlight{sliding{aligned{period, offset}, burst, period, 1}}, countable(c, burst)
}

func (inFlight) letter() byte    { return inFlightLetter }
func (inFlight) script() *script { return inFlightScript }

func (s inFlight) arguments(to []byte, now int64) []byte {
	s.step = 1 // which the script has no use for
	return s.sliding.arguments(to, now)
}

// worst: units that are given back can be admitted again at once.
func (inFlight) worst(int64) uint64 { return math.MaxUint64 }

func (s inFlight) cycle() cycle {
	c := s.sliding.cycle()
	c.whole = true
	return c
}

// inFlight reports whether the plan is of units in flight, which their holders give back when they end.
func (p *plan) inFlight() bool { return p.shape.letter() == inFlightLetter }

// refundHere gives units back to the share, since Redis has not answered. Units in flight are also taken off what Redis has
// to be told of, unless it may have made the refund. Units that Redis is being told of at this moment stay: they come back by themselves.
func (a *asked) refundHere(r *request, share sluice.Key) {
	share.Refund(int(r.n))
	if r.plan.inFlight() && a.lane.unmade(a.group) {
		a.lane.disown(r.key, r.n)
	}
}

// unmade reports whether Redis has certainly not run the call of a group that has ended. g may be nil.
func (l *lane) unmade(g *group) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return g == nil || g.state == groupDropped || g.state == groupUndone
}
