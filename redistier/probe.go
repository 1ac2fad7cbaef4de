package redistier

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Probes find out whether a primary that has failed answers again. Nobody waits for one, and none is a call
// that somebody has made: it writes the state of a key as it is, so that a server that refuses scripts, or
// writes, fails it as well.
//
//	timer:   sends a probe when a pause ends, and begins the next one; when a return ends, so does the outage
//	probe:   asks, and begins the return if the answer has come in time                       (lock)
//
// A probe may get stuck in the client. Others go out all the same, up to maxProbes at a time.

const (
	maxProbes = 4
	// probeLife is how long a probe may be read for. Then its connection is closed.
	probeLife = time.Second
)

// opened is for a breaker that has opened, by a call of a request. The caller holds mu.
func (l *lane) opened(r *request) {
	l.setReturning(false)
	l.lost = request{plan: r.plan, key: r.key, op: opCharge}
	if r.plan.shape.letter() == logLetter { // a charge of none would make its block last longer
		l.lost.op, l.lost.n = opAdmit, 1
	}
	l.beats(time.Now())
}

// setReturning notes whether calls have to keep to the share as well. The caller holds mu.
func (l *lane) setReturning(yes bool) {
	if l.returning.Swap(yes) != yes {
		l.core.returning.Add(map[bool]int64{true: 1, false: -1}[yes])
	}
}

// beats sets the timer for what the breaker waits for. The caller holds mu.
func (l *lane) beats(now time.Time) {
	l.pulse = rearm(l.pulse, max(l.breaker.until.Sub(now), 0), l.beat)
}

// beat is called when a pause or a return is over.
func (l *lane) beat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case l.closed || l.breaker.state == breakerClosed:
	case now.Before(l.breaker.until):
		l.beats(now)
	case l.breaker.state == breakerReturning:
		l.breaker = breaker{}
		l.setReturning(false)
		l.core.turn(-1, nil)
	default:
		l.breaker.wait(now)
		l.beats(now)
		if l.probes < maxProbes {
			l.probes++
			l.probed = now
			ctx, r := l.context(now), l.lost
			l.done.Go(func() { l.probe(ctx, &r, now) })
		}
	}
}

// probe asks, and tells the breaker of an answer. One that is late says that the primary may be quick again by
// now, as one does that had been stopped.
func (l *lane) probe(ctx context.Context, r *request, sent time.Time) {
	l.core.stats.scripts.Add(1)
	by, err := l.core.link.prober(ctx, r.key)
	if err == nil {
		_, err = l.core.link.runAt(ctx, by, r, l.core.link.clock())
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probes--
	if l.breaker.state != breakerOpen || l.closed || !answers(err) {
		return
	}
	if now.Sub(sent) <= l.core.wait {
		l.breaker.returns(now)
		l.setReturning(true)
		l.owedFrom = time.Time{}
		l.send()
	} else if now.Sub(l.probed) >= firstPause {
		l.breaker.until = now
	}
	l.beats(now)
}

// prober returns what runs a probe: the client of the primary that has a key, with a timeout of ours, or else the client.
func (l *link) prober(ctx context.Context, key string) (processor, error) {
	var node *redis.Client
	var err error
	switch c := l.client.(type) {
	case *Client:
		node = c.base
	case *redis.Client:
		node = c
	case *redis.ClusterClient:
		node, err = c.MasterForKey(ctx, key)
	case *redis.Ring:
		node, err = c.GetShardClientForKey(key)
	default:
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	return node.WithTimeout(probeLife), nil
}

// answers reports whether what has come of a call shows that the primary answers. A refusal for want of
// memory is no reason not to ask it: denials write nothing.
func answers(err error) bool { return err == nil || errors.Is(err, ErrForeignValue) || isOOM(err) }
