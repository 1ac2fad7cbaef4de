package rulestore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// maxHolds is how many open holds a key can have.
const maxHolds = 10_000

// Hold implements rules.HoldStore: the holds are in Redis, so that each engine can go on with them. All calls have to be of one
// server, and in a cluster of one slot, as in an atomic domain. A SlidingLog and limits with BlockFor have no holds.
func (s *Store) Hold(terms rules.HoldTerms, calls []rules.StoreCall) (rules.HoldResult, error) {
	return s.holds(redislimit.OpHold, &terms, calls)
}

// Extend implements rules.HoldStore. It is rules.ErrManyHolds for a hold that has 1,024 steps.
func (s *Store) Extend(terms rules.HoldTerms, calls []rules.StoreCall) (rules.HoldResult, error) {
	return s.holds(redislimit.OpExtend, &terms, calls)
}

// Settle implements rules.HoldStore.
func (s *Store) Settle(terms rules.HoldTerms, calls []rules.StoreCall) (rules.HoldResult, error) {
	return s.holds(redislimit.OpSettle, &terms, calls)
}

// holds makes the calls of a hold, all or none.
func (s *Store) holds(op redislimit.Op, terms *rules.HoldTerms, calls []rules.StoreCall) (r rules.HoldResult, err error) {
	r.Denied = -1
	if len(calls) == 0 {
		return r, nil
	}
	first := calls[0].Counter.(*counter)
	b := batches.Get().(*batch)
	defer b.free()
	if err := s.addID(b, first, op, terms); err != nil {
		return r, err
	}
	before := len(b.calls)
	for i := range calls {
		c := calls[i].Counter.(*counter)
		if !holdable(&c.StoreLimit) {
			return r, fmt.Errorf("%w: a rule has algorithm: sliding-log or block_for, whose counts in Redis have none; want another rule for what is held", rules.ErrNoHolds)
		}
		if c.on != first.on {
			return r, fmt.Errorf("%w of these limits together: some are of a second, and count in another Redis; want an atomic domain", rules.ErrNoHolds)
		}
		b.add(c, c.hold(op, terms, calls, i))
	}
	all, err := b.doAll(first.on)
	if err != nil {
		return r, holdError(err)
	}
	r.Again = true
	if r.Denied = all.Denied; r.Denied >= 0 {
		r.Denied -= before // an id needs no room
	}
	for i := range calls {
		out := &b.results[before+i]
		calls[i].Counter.(*counter).answer(&calls[i], &b.calls[before+i], out)
		r.Again, r.Capped = r.Again && out.Again, r.Capped || out.Capped
	}
	return r, nil
}

// hold returns a call of a hold in redislimit's form.
func (c *counter) hold(op redislimit.Op, terms *rules.HoldTerms, calls []rules.StoreCall, i int) redislimit.StoreCall {
	in := &calls[i]
	out := redislimit.StoreCall{Limit: c.limit, Key: in.Key, Cost: clamp(in.Hits), Override: in.Limit, Op: op, HoldID: holdID(terms, calls, i)}
	switch op {
	case redislimit.OpSettle:
		out.Remember, out.Capped, out.Debt = terms.Remember, true, clamp(in.Debt)
		if c.inFlight() { // a call that has ended uses nothing
			out.Cost = 0
		}
	case redislimit.OpExtend:
		out.TTL, out.Step = terms.TTL, terms.Step
	default:
		out.TTL, out.GiveBack, out.Once = terms.TTL, terms.GiveBack, true
	}
	if in.Op == rules.CountAll && op != redislimit.OpSettle {
		out.Over, out.OrNone = c.Windows(), !c.Windows()
	}
	return out
}

// holdID returns the id of a hold for a call: of its names, so that only who names its descriptors has it. Counters of limits that
// differ only in Limit have the same keys in Redis: for each of their calls behind the first of a key, the id is another one.
func holdID(terms *rules.HoldTerms, calls []rules.StoreCall, i int) string {
	n, c := 0, calls[i].Counter.(*counter)
	for j := range calls[:i] {
		o := calls[j].Counter.(*counter)
		if calls[j].Key == calls[i].Key && o.on == c.on && name(&o.StoreLimit) == name(&c.StoreLimit) {
			n++
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", terms.ID, terms.Names, n))
	return string(sum[:16])
}

// Each id of a domain has a key of its own, which is a hold itself: of as many units as the digests say, so that another request with the
// id, and another settlement of it, are found out whatever their keys are. A Hold or Settle that was made before changes none of the
// other keys: a reload may have given a descriptor a limit since, and a Reset may have ended the hold of a key. Its limit is never reached, and its units are gone soon after
// the hold has ended; as a bucket it has no window whose end an outage could outlast. Keys in other slots of a
// cluster cannot be reached together, so there only domains that are atomic have these keys.

// idUnits bounds the units of an id.
const idUnits = 1 << 20

// unitsOf returns the units of the id of a hold: other ones for other descriptors, and for other hits of them.
func unitsOf(terms *rules.HoldTerms) int {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", terms.Names, terms.Digest))
	return 1 + int(binary.BigEndian.Uint32(sum[:])%idUnits)
}

// addID adds the call for the id of a hold.
func (s *Store) addID(b *batch, c *counter, op redislimit.Op, terms *rules.HoldTerms) error {
	if s.slots && !c.Atomic {
		return nil
	}
	limit, err := s.ids(c, terms.Domain)
	if err != nil {
		return err
	}
	call := redislimit.StoreCall{Limit: limit, Key: fmt.Sprintf("%d:%s %s", len(terms.Domain), terms.Domain, terms.ID), Op: op, HoldID: ".", AllAgain: op != redislimit.OpExtend}
	switch op {
	case redislimit.OpHold:
		call.Over = true // else the share of a large fleet could deny an id
		call.TTL, call.GiveBack, call.Once, call.Cost = terms.TTL, terms.GiveBack, true, unitsOf(terms)
	case redislimit.OpExtend:
		call.TTL, call.Step = terms.TTL, terms.Step
	default:
		call.Remember, call.Cost = terms.Remember, unitsOf(terms)
	}
	b.add(c, call)
	return nil
}

// ids returns the limit of the ids of a domain, which counts where c does.
func (s *Store) ids(c *counter, domain string) (*redislimit.StoreLimit, error) {
	cfg := redislimit.LimitConfig{Name: "id", Algorithm: sluice.LeakyBucket, Limit: sluice.Per(plenty, time.Second), Exact: true, MaxHolds: 2}
	if s.slots { // then c is of an atomic domain
		cfg.Tag = tag(domain)
		cfg.Name += " of " + cfg.Tag
	}
	s.idLimits.mu.Lock()
	defer s.idLimits.mu.Unlock()
	at := idPlace{c.on, cfg.Name}
	if known := s.idLimits.open[at]; known != nil {
		return known, nil
	}
	opened, err := c.on.Limit(cfg)
	if err != nil {
		return nil, plain(err)
	}
	if s.idLimits.open == nil {
		s.idLimits.open = map[idPlace]*redislimit.StoreLimit{}
	}
	s.idLimits.open[at] = opened
	return opened, nil
}

// idLimits are the limits of ids. There is one for each server, or in a cluster one for each atomic domain.
type idLimits struct {
	mu   sync.Mutex
	open map[idPlace]*redislimit.StoreLimit
}

type idPlace struct {
	on   *redislimit.Store
	name string
}

// holdError returns an error of redislimit as one of rules.
func holdError(err error) error {
	for own, theirs := range map[error]error{redislimit.ErrNotHeld: rules.ErrNotHeld, redislimit.ErrOtherHold: rules.ErrOtherHold, redislimit.ErrManyHolds: rules.ErrManyHolds, redislimit.ErrEndedHold: rules.ErrEndedHold} {
		if errors.Is(err, own) {
			return theirs
		}
	}
	return plain(err)
}

// holdable reports whether keys of a limit can have holds.
func holdable(l *rules.StoreLimit) bool { return l.Algorithm != sluice.SlidingLog && l.BlockFor == 0 }
