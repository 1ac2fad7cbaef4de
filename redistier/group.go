package redistier

import (
	"time"

	"github.com/sluice-go/sluice"
)

// A group is the callers of one key and cost, who share a call of the script; or a call that no
// caller has made, of what Redis is told.
//
// The lane's lock guards it. Nothing of the request changes once it is sent, and nobody who has seen
// done closed needs the lock to read what it ended with.
type group struct {
	// As it is made.
	request
	hold     *hold // of the key's leases, or nil
	deadline time.Time

	state   groupState
	waiters []*waiter // none, if no caller has made it
	first   waiter
	some    [1]*waiter // room for it

	// As it is sent.
	batch  *batch
	direct *direct     // if its caller leads
	owed   *owedCharge // that its call tells of, or nil

	charges  int64 // calls of Charge that it is: n is that of all of them
	admitted int64 // units that its callers were admitted without Redis while it was late

	// As it ends.
	done  chan struct{} // closed
	reply reply
	err   error
	slack int64 // ns after a denial that ends, until Redis is asked again
	pause int64 // ns after it was sent, until Redis is asked again, since it has nothing left
}

// A groupState is how far a group has come:
//
//	queued -> sent -> back or undone            what has come of it goes to its callers
//	          sent -> late -> back or undone    it was not there by the deadline
//	queued -> dropped                           nor was it sent by then; or nobody waits for it any more
//
// Invariant: callers join a group that is queued, and no other. One with a batch is not queued, nor
// has it been dropped.
//
// Invariant: the breaker hears once of each group, as it ends, unless nothing is known of the primary:
// its callers have left, or been admitted from a lease. Calls that no caller has made may take
// their time, and so are never late.
type groupState uint8

const (
	groupQueued groupState = iota
	groupSent
	// Those that have ended, for their callers:
	groupDropped // and are never sent
	groupLate    // and are still on their way: Redis may be charged
	groupBack    // and the client has returned
	groupUndone  // with nothing that Redis has done
)

func (s groupState) ended() bool { return s >= groupDropped }

// A waiter is a caller. Its rank is the number of those that come before it in its group,
// and wait for Redis.
type waiter struct {
	rank     int64
	gone     bool // its context has ended; if the group had been sent by then, that changes nothing
	leased   bool // it has been admitted from a lease, whatever becomes of the group:
	decision sluice.Decision
}

// waits returns how many of the group's callers wait for Redis.
func (g *group) waits() (n int) {
	for _, w := range g.waiters {
		if !w.gone && !w.leased {
			n++
		}
	}
	return n
}

// wanted reports whether a group is to be sent: a Refund or a Reset is made though its caller has left.
func (g *group) wanted() bool { return g.op == opRefund || g.op == opReset || g.waits() > 0 }

// A groupKey is what callers have in common that share a call.
type groupKey struct {
	plan    *plan
	name    string
	cost    int64
	op      byte
	charges bool
}

func joinKey(r *request) groupKey { return groupKey{r.plan, r.key, r.n, r.op, r.k > 0} }

// shared reports whether callers may share the call of a request. Charges may where what others have charged
// can be taken off the reply again: neither of a log, nor of a block, which lasts for as long as units count.
func (r *request) shared() bool {
	return r.op == opAdmit || r.op == opCharge && r.plan.shape.letter() != logLetter && r.plan.block == 0
}

// full reports whether nobody else may join a group.
func (g *group) full() bool {
	n := int64(len(g.waiters)) + 1
	return n > 1<<20 || g.op == opCharge && n > (exact/2-1)/g.n
}

// viewOf returns the state right after the call of the caller of a rank, of a group whose calls are all
// charged, or none is.
func (g *group) viewOf(rank int64) view {
	if g.op != opCharge || g.charges < 2 {
		return g.reply.view
	}
	return g.plan.shape.charged(g.reply.view, -(g.charges-1-rank)*(g.n/g.charges))
}
