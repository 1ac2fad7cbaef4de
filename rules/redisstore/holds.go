package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redistier"
	"github.com/sluice-go/sluice/rules"
)

// maxHolds is how many open holds a key can have.
const maxHolds = 10_000

// Hold implements rules.HoldStore: the holds are in Redis, so that each engine can go on with them. All calls have to be of one
// server, and in a cluster of one slot, as those of an atomic domain are. A SlidingLog and limits with BlockFor have no holds.
func (s *Store) Hold(terms rules.HoldTerms, calls []rules.StoreCall) (denied int, err error) {
	return s.holds(redistier.OpHold, &terms, calls)
}

// Extend implements rules.HoldStore. It is rules.ErrManyHolds for a hold that has 1,024 steps.
func (s *Store) Extend(terms rules.HoldTerms, calls []rules.StoreCall) (denied int, err error) {
	return s.holds(redistier.OpExtend, &terms, calls)
}

// Settle implements rules.HoldStore.
func (s *Store) Settle(terms rules.HoldTerms, calls []rules.StoreCall) error {
	_, err := s.holds(redistier.OpSettle, &terms, calls)
	return err
}

// holds makes the calls of a hold, all or none.
func (s *Store) holds(op redistier.Op, terms *rules.HoldTerms, calls []rules.StoreCall) (denied int, err error) {
	if len(calls) == 0 {
		return -1, nil
	}
	on := calls[0].Counter.(*counter).on
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		c := in.Counter.(*counter)
		if !holdable(&c.StoreLimit) {
			return -1, fmt.Errorf("%w: a rule has algorithm: sliding-log or block_for, whose counts in Redis have none; want another rule for what is held", rules.ErrNoHolds)
		}
		if c.on != on {
			return -1, fmt.Errorf("%w of these limits together: some are of a second, and count in another Redis; want an atomic domain", rules.ErrNoHolds)
		}
		b.add(c, c.hold(op, terms, calls, i))
	}
	all, err := b.doAll(on)
	if err != nil {
		return -1, holdError(err)
	}
	for i := range calls {
		calls[i].Counter.(*counter).answer(&calls[i], &b.calls[i], &b.results[i])
	}
	return all.Denied, nil
}

// hold returns a call of a hold in redistier's form.
func (c *counter) hold(op redistier.Op, terms *rules.HoldTerms, calls []rules.StoreCall, i int) redistier.StoreCall {
	in := &calls[i]
	out := redistier.StoreCall{Limit: c.limit, Key: in.Key, Cost: clamp(in.Hits), Override: in.Limit, Op: op, HoldID: holdID(terms.ID, calls, i)}
	switch op {
	case redistier.OpSettle:
		out.Remember = terms.Remember
		if c.inFlight() { // what has ended uses nothing
			out.Cost = 0
		}
	case redistier.OpExtend:
		out.TTL, out.Step = terms.TTL, terms.Step
		out.Over = in.Op == rules.CountAll
	default:
		out.TTL, out.GiveBack = terms.TTL, terms.GiveBack
		out.Over = in.Op == rules.CountAll
	}
	return out
}

// holdID returns the id of a hold for a call. Counters of limits that differ only in Limit have the same keys in Redis: for
// each of their calls behind the first of a key, the id is another one. The ids of rules have no spaces.
func holdID(id string, calls []rules.StoreCall, i int) string {
	n, c := 0, calls[i].Counter.(*counter)
	for j := range calls[:i] {
		o := calls[j].Counter.(*counter)
		if calls[j].Key == calls[i].Key && o.on == c.on && name(&o.StoreLimit) == name(&c.StoreLimit) {
			n++
		}
	}
	if n == 0 {
		return id
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", id, n))
	return " " + hex.EncodeToString(sum[:])
}

// holdError returns an error of redistier as one of rules.
func holdError(err error) error {
	for own, theirs := range map[error]error{redistier.ErrNotHeld: rules.ErrNotHeld, redistier.ErrOtherHold: rules.ErrOtherHold, redistier.ErrManyHolds: rules.ErrManyHolds} {
		if errors.Is(err, own) {
			return theirs
		}
	}
	return plain(err)
}

// holdable reports whether keys of a limit can have holds.
func holdable(l *rules.StoreLimit) bool { return l.Algorithm != sluice.SlidingLog && l.BlockFor == 0 }
