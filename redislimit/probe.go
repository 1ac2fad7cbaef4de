package redislimit

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Probes find out whether a primary that has failed answers again. No caller waits for a probe, and a probe does not
// repeat a caller's call. It writes the state of a key as it is. So it also fails on a server that refuses scripts, or
// writes.
//
//	timer:   sends a probe when a pause ends, and begins the next pause; at the end of a return, ends the outage
//	probe:   asks, and begins the return if the answer has come in time                       (lock)
//
// A probe may get stuck in the client. Further probes go out all the same, up to maxProbes at a time.

const (
	maxProbes = 4
	// probeLife is how long the answer to a probe may take. Then the probe's connection is closed.
	probeLife = time.Second
)

// opened is called when a call of a request has opened the breaker. The caller holds mu.
func (l *lane) opened(r *request) {
	l.setReturning(false)
	l.lost = request{plan: r.plan, key: r.key, op: opDebit}
	if r.plan.shape.letter() == logLetter { // a charge of no units would make the block of a log last longer
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

// beats sets the timer for the end of the breaker's pause or return. The caller holds mu.
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
		l.breaker.closes()
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

// probe asks, and tells the breaker of an answer. A late answer means that the primary may be quick again by
// now, such as one that had been stopped.
func (l *lane) probe(ctx context.Context, r *request, sent time.Time) {
	l.core.stats.scripts.Add(1)
	late, timer := l.lateAfter(sent)
	by, err := l.core.link.prober(ctx, r.key)
	if err == nil {
		_, err = l.core.link.runAt(ctx, by, r, l.core.link.clock())
	}
	timer.Stop()
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probes--
	if Unreached(err) {
		l.core.stats.dialErrors.Add(1)
	}
	l.because(err)
	if l.breaker.state != breakerOpen || l.closed || !answers(err) {
		return
	}
	if now.Sub(sent) <= l.core.wait || !*late {
		l.breaker.returns(now)
		l.setReturning(true)
		l.owedFrom = time.Time{}
		l.send()
	} else if now.Sub(l.probed) >= firstPause {
		l.breaker.until = now
	}
	l.beats(now)
}

// lateAfter sets a flag when the answer to a probe is late, which mu guards, by a timer that is to be stopped.
func (l *lane) lateAfter(sent time.Time) (late *bool, timer *time.Timer) {
	late = new(bool)
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.core.patience(sent)
	timer = time.AfterFunc(p.deadline.Sub(sent), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := time.Now()
		if *late = !p.extend(now); !*late {
			timer.Reset(p.deadline.Sub(now))
		}
	})
	return late, timer
}

// prober returns a processor for a probe: the client of the primary of a key, with our timeout, or else the client.
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

// answers reports whether the outcome of a call shows that the primary answers. A refusal for lack of
// memory is no reason to stop asking it: denials write nothing.
func answers(err error) bool {
	return err == nil || errors.Is(err, ErrForeignValue) || ofHold(err) || isOOM(err)
}
