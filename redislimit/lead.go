package redislimit

import (
	"context"
	"errors"
	"os"
	"time"
)

// Callers lead if NewClient has made the client. A caller that comes to an idle lane is a sender
// for one batch, which is its own call:
//
//	caller:  takes the lane's connection, and makes its group a batch   (lock)
//	caller:  sets the socket's deadline, writes, and reads
//	context: ends, and moves the deadline into the past
//	caller:  whose deadline has come late, reads on: see patience
//	caller:  ends its group; puts the connection back, or closes it     (lock)
//
// Callers that come meanwhile queue for the other senders. Other callers never call the client, since
// it may hold them up: it dials, runs hooks, tries again, and reads until a timeout of its own. This connection
// does none of these: it has been dialled before, and its deadline is the call's.
//
// Invariant: a connection is in the lane or with one caller. In the lane it is at rest, and has no
// reply left in it. While one is dialled the lane has none.

// dialPause is the time from one dial to the next.
const dialPause = time.Second

// errLeft is the error of a call whose caller's context has ended. It says nothing about the primary.
var errLeft = errors.New("redislimit: the caller has left")

// leads returns the connection on which a caller is to make its call itself. It returns nil if a sender is to
// make it; then leads arranges a connection for the next time. The caller holds mu.
func (l *lane) leads(now time.Time) *direct {
	if l.client == nil || l.senders+l.late+len(l.waiting)+len(l.owed)+len(l.untold)+len(l.settling) > 0 {
		return nil
	}
	d, alone := l.direct, l.client.alone.Load()
	l.direct = nil
	if d != nil && !alone && l.client.usable(d, now) {
		return d
	}
	if d != nil {
		l.done.Go(d.close)
	}
	if !alone && !l.dialling && !now.Before(l.dialFrom) {
		l.dialling, l.dialFrom = true, now.Add(dialPause)
		l.done.Go(l.dial)
	}
	return nil
}

// begin makes a caller lead, unless its call has been answered from a lease in the meantime. The
// caller holds mu.
func (l *lane) begin(g *group, d *direct, now time.Time) {
	if !l.ready(g, now) {
		l.direct = d
		return
	}
	g.direct = d
	newBatch(now, 1).add(g)
	l.senders++
	l.done.Add(1)
}

// dial gives the lane a connection for callers.
func (l *lane) dial() {
	d := l.client.dial()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialling, l.direct = false, d
}

// lead makes the call of a group, for its only caller. The error is ctx's.
func (l *lane) lead(ctx context.Context, g *group) (err error) {
	b := g.batch
	b.scripts = append(b.scripts, scheduled{request: g.request, now: l.core.link.clock(), err: errLeft}) // if go-redis or ctx panics
	s := &b.scripts[0]
	sound := false
	defer func() { l.led(g, s, sound) }()
	l.core.stats.scripts.Add(1)
	l.core.stats.led.Add(1)
	g.direct.await(&g.patience)
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, g.direct.cancel)
	}
	s.reply, s.err = l.core.link.runAt(context.Background(), g.direct, &s.request, s.now)
	// If ctx has ended by now, the deadline may still be moved into the past.
	sound = stop() && (s.err == nil || errors.Is(s.err, ErrForeignValue)) && !g.direct.off
	switch {
	case s.err != nil && ctx.Err() != nil:
		s.err, err = errLeft, ctx.Err()
	case errors.Is(s.err, os.ErrDeadlineExceeded):
		s.err = errLate
	}
	return err
}

// led hands out the reply to the call that a caller has made.
func (l *lane) led(g *group, s *scheduled, sound bool) {
	now := time.Now()
	l.core.tripped(now.Sub(g.batch.sent))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(g, s, now)
	if sound {
		l.direct, g.direct.used = g.direct, now
	} else {
		l.done.Go(g.direct.close)
	}
	if l.closed && len(l.settling) > 0 { // a lease has come too late, and only another sender can give it back
		l.done.Go(l.sender)
	} else {
		l.senders--
		l.send()
	}
	l.done.Done()
}
