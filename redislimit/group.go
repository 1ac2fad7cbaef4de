package redislimit

import (
	"math"

	"github.com/sluice-go/sluice"
)

// A group is the callers of one key and cost, who share a call of the script. A group without callers is a
// call that only tells Redis of leases or owed charges.
//
// The lane's lock guards it. The request does not change once it is sent. After done is closed, the
// outcome can be read without the lock.
type group struct {
	// Set when the group is made.
	request
	patience
	loan *loan // of the key's leases, or nil

	state   groupState
	waiters []*waiter // none, if no caller has made the group
	first   waiter
	some    [1]*waiter // room for one waiter

	// Set when the group is sent.
	batch  *batch
	direct *direct     // if its caller leads
	owed   *owedCharge // the owed charge that its call tells of, or nil
	tells  *localHold  // the hold that its call tells of, or nil

	charges int64 // how many calls of Debit share it: n is the sum of their units

	// Of a call that is late.
	admitted int64        // units that its callers were admitted without Redis
	holds    []*localHold // holds that they were admitted
	known    bool         // Redis has answered by now, and has charged
	covered  int64        // so many units that no caller has been admitted yet

	// Set when the group ends.
	done  chan struct{} // closed
	reply reply
	err   error
	slack int64 // ns from the end of a denial until Redis is asked again
	pause int64 // ns from sending until Redis is asked again, since Redis has nothing left
}

// A groupState is how far a group has come:
//
//	queued -> sent -> back or undone            its callers get the outcome
//	          sent -> late -> back or undone    there was no outcome by the deadline
//	queued -> dropped                           it was not sent by then, or no caller waits for it any more
//
// Invariant: callers join only groups that are queued. A group with a batch is not queued, nor
// has it been dropped.
//
// Invariant: the breaker hears once of each group, when it ends, unless nothing is known of the primary:
// the group's callers have left, or have been admitted from a lease. Calls that no caller has made may take
// their time, and so are never late.
type groupState uint8

const (
	groupQueued groupState = iota
	groupSent
	// Ended states, as callers see them:
	groupDropped // never sent
	groupLate    // still on its way: Redis may be charged
	groupBack    // the client has returned
	groupUndone  // the client has returned, and Redis has done nothing
)

func (s groupState) ended() bool { return s >= groupDropped }

// A waiter is a caller. Its rank is the number of callers before it in its group
// that wait for Redis.
type waiter struct {
	rank     int64
	gone     bool // its context has ended; if the group had been sent by then, the call still counts
	leased   bool // it has been admitted from a lease, whatever happens to the group:
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

// wanted reports whether a group is to be sent. A Refund, a Reset or a settlement is sent even if its caller has left.
func (g *group) wanted() bool {
	return g.op == opRefund || g.op == opReset || g.what == whatSettle || g.waits() > 0
}

// A groupKey is equal for callers that can share a call.
type groupKey struct {
	plan    *plan
	name    string
	cost    int64
	op      byte
	charges bool
}

func joinKey(r *request) groupKey { return groupKey{r.plan, r.key, r.n, r.op, r.k > 0} }

// shared reports whether callers may share the call of a request. Charges may if the charges of the other callers
// can be subtracted from the reply: not from that of a log, nor from a block, which lasts for as long as units count.
func (r *request) shared() bool {
	return r.op == opAdmit || r.op == opDebit && r.plan.shape.letter() != logLetter && r.plan.block == 0
}

// full reports whether no more callers may join a group.
func (g *group) full() bool {
	n := int64(len(g.waiters)) + 1
	return n > 1<<20 || g.op == opDebit && n > (exact/2-1)/g.n
}

// viewOf returns the state right after the call of the caller with a rank. Either all calls of the group are
// charged, or none.
func (g *group) viewOf(rank int64) view {
	if g.op != opDebit || g.charges < 2 {
		return g.reply.view
	}
	return g.plan.shape.charged(g.reply.view, -(g.charges-1-rank)*(g.n/g.charges))
}

// charged returns how many units Redis has charged for the callers: of calls that are made together, and of a hold, all or none.
func (g *group) charged(s *scheduled) int64 {
	switch {
	case s.err != nil:
		return 0
	case g.op == opAll && s.reply.all.made(), g.op == opHold && s.reply.admitted == 1:
		return math.MaxInt64
	case g.op == opDebit:
		return g.n
	case g.op == opAdmit:
		return s.reply.admitted * g.n
	}
	return 0
}
