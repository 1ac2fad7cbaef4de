package redislimit

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// ErrNotHeld is the error of OpSettle and OpExtend for a hold that is not open: it was never made, has been settled, has
// lapsed, is of another key, or was made without Redis by another process. Nothing has changed.
var ErrNotHeld = errors.New("redislimit: there is no such hold of the key: it has been settled, has lapsed, or was not made here")

// ErrManyHolds is the error of OpHold for a key that has LimitConfig.MaxHolds open holds, and of OpExtend for a hold that
// has 1,024 Steps. Nothing has been held.
var ErrManyHolds = errors.New("redislimit: the key has as many open holds as LimitConfig.MaxHolds allows")

// ErrOtherHold is the error of OpHold if the key has a hold of that HoldID that was made with another Cost or GiveBack.
// Nothing has been held.
var ErrOtherHold = errors.New("redislimit: the HoldID is that of another hold of the key; want one of its own for each")

// ErrEndedHold is the error of OpHold, with StoreCall.Once, for the HoldID of a hold of the key that has ended. While Redis has not been told of a
// settlement, it is also the error of OpHold without Once for that HoldID: only Redis knows whether it is the same hold. Nothing has been held.
var ErrEndedHold = errors.New("redislimit: the hold of this HoldID has ended; want one of its own for each")

// ofHold reports whether an error is Redis' answer about a hold.
func ofHold(err error) bool {
	return errors.Is(err, ErrNotHeld) || errors.Is(err, ErrManyHolds) || errors.Is(err, ErrOtherHold) || errors.Is(err, ErrEndedHold)
}

// refusedHold returns the error of a script that has refused a hold, or nil.
func refusedHold(text string) error {
	switch {
	case strings.HasPrefix(text, "SLUICENOTHELD"):
		return ErrNotHeld
	case strings.HasPrefix(text, "SLUICEHOLDS"):
		return ErrManyHolds
	case strings.HasPrefix(text, "SLUICEOTHERHOLD"):
		return ErrOtherHold
	case strings.HasPrefix(text, "SLUICEENDEDHOLD"):
		return ErrEndedHold
	}
	return nil
}

const (
	maxHolds  = 1 << 20
	maxHoldID = 128
	maxTTL    = 365 * 24 * time.Hour
	tailSize  = 4*7 + 3*6 // more than the state of a key without holds
)

// What a receipt asks for.
const (
	whatHold = 1 + iota
	whatSettle
	whatExtend
)

// What the script says of a hold, in the place of how many calls it has admitted.
const (
	saysNotHeld = 1<<32 - 1 - iota
	saysManyHolds
	saysOtherHold
	saysEndedHold
)

// What the script says of a hold beside that, or 0.
const (
	saidAgain = 1 + iota
	saidCapped
	saidNone // there was no room, see flagOrNone
)

// A receipt is the part of a request that concerns holds; see receipts.lua. The zero value asks for nothing.
type receipt struct {
	what      byte
	ttl, most int64 // ttl in us
	beyond    int64
	flags     byte
	id        string
	step      string // 16 bytes, or none
}

const (
	flagGiveBack = 1 << iota // units come back when the hold lapses
	flagChosen               // the caller has chosen the id, and may try again
	flagOver                 // units are held whether there is room or not
	flagOrNone               // where there is no room none are held
	flagOnce                 // the id of a hold that has ended is refused
)

func (r *receipt) arguments(b []byte) []byte {
	b = appendUint56(appendUint32(appendUint56(append(b, r.what), r.ttl), r.most), r.beyond)
	b = append(append(b, r.flags, byte(len(r.id))), r.id...)
	return append(append(b, byte(len(r.step))), r.step...)
}

// newHoldID returns an id that no other hold has: 128 random bits.
func newHoldID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// holdNames returns the names of the hash of open holds, and of the sorted set of the times when they lapse. They are in the
// slot of the key that has the name. A key without a hash tag has no brace in its name, so that its whole name can be one.
func holdNames(name string) (holds, times string) {
	if strings.IndexByte(name, '{') < 0 {
		return "{" + name + "}h", "{" + name + "}t"
	}
	at := strings.IndexByte(name, '~') + 2 // behind the letter
	return name[:at] + "h" + name[at:], name[:at] + "t" + name[at:]
}

// letter, script and keeps are the shape's, with holds or without.
func (p *plan) letter() byte {
	if p.holds {
		return p.shape.letter() - 'a' + 'A'
	}
	return p.shape.letter()
}

func (p *plan) script() *script {
	if p.holds {
		return holdScripts[p.shape.letter()]
	}
	return p.shape.script()
}

func (p *plan) keeps(state string) bool {
	if p.holds && state != "" {
		return len(state) > tailSize && p.shape.keeps(state[:len(state)-tailSize])
	}
	return p.shape.keeps(state)
}

// validateHolds returns an error if a limit cannot have the holds that it asks for.
func (c *LimitConfig) validateHolds(prefix string) error {
	switch {
	case c.MaxHolds == 0:
		return nil
	case c.MaxHolds < 0 || c.MaxHolds > maxHolds:
		return configErrorf("MaxHolds", "%d; want 1 to %d open holds of a key, or 0 for a limit without holds", c.MaxHolds, maxHolds)
	case c.Algorithm == sluice.SlidingLog:
		return configErrorf("MaxHolds", "%d with %v, whose units do not know their hold; want 0, or another Algorithm", c.MaxHolds, c.Algorithm)
	case c.BlockFor > 0:
		return configErrorf("MaxHolds", "%d with BlockFor: the state of a blocked key has no holds; want one of them", c.MaxHolds)
	case strings.ContainsAny(prefix, "{}") && !tagged(prefix):
		return configErrorf("MaxHolds", "%d with the Prefix %q, whose braces are no hash tag: the holds of a key would be in another slot than the key; want a whole hash tag, such as \"rl:{login}\", or no brace", c.MaxHolds, prefix)
	}
	return nil
}

// tagged reports whether a prefix has a hash tag that is not empty.
func tagged(prefix string) bool {
	_, rest, _ := strings.Cut(prefix, "{")
	tag, _, ends := strings.Cut(rest, "}")
	return ends && tag != ""
}

// isOfHold reports whether an operation is of a hold.
func (o Op) isOfHold() bool { return o >= OpHold }

// checkHold returns an error if a call of a hold is invalid.
func (c *StoreCall) checkHold() error {
	switch l := c.Limit; {
	case l.config.MaxHolds == 0:
		return configErrorf("MaxHolds", "it is 0 for %q, and the call is an OpHold, OpSettle or OpExtend; want the most open holds of a key, such as 10000", l.config.Name)
	case len(c.HoldID) > maxHoldID:
		return fmt.Errorf("redislimit: HoldID has %d bytes; want at most %d", len(c.HoldID), maxHoldID)
	case c.HoldID == "" && c.Op != OpHold:
		return fmt.Errorf("redislimit: HoldID is empty; want that of the hold")
	case c.TTL < 0 || c.TTL > maxTTL || c.TTL == 0 && c.Op == OpHold:
		return fmt.Errorf("redislimit: TTL is %v; want up to %v until the hold lapses", c.TTL, maxTTL)
	case c.Remember < 0 || c.Remember > maxTTL || c.Remember > 0 && c.Op != OpSettle:
		return fmt.Errorf("redislimit: Remember of %v is %v; want 0, or up to %v with OpSettle", c.Op, c.Remember, maxTTL)
	case c.Step != "" && c.Op != OpExtend:
		return fmt.Errorf("redislimit: Step of %v is %q; want none, or OpExtend", c.Op, c.Step)
	case c.Cost < 0:
		return fmt.Errorf("redislimit: the Cost of a hold is %d; want 0 or more", c.Cost)
	case c.Debt < 0 || c.Capped && c.Op != OpSettle || c.Debt > 0 && !c.Capped:
		return fmt.Errorf("redislimit: Debt of %v is %d, and Capped is %t; want Debt of 0 or more with OpSettle and Capped, or none", c.Op, c.Debt, c.Capped)
	case c.OrNone && (c.Over || c.Op == OpSettle):
		return fmt.Errorf("redislimit: OrNone of %v, where Over is %t; want OpHold or OpExtend, and one of OrNone and Over", c.Op, c.Over)
	case c.Once && c.Op != OpHold:
		return fmt.Errorf("redislimit: Once of %v; want OpHold", c.Op)
	}
	return nil
}

// receiptOf returns the request part of a call of a hold. A made id is put into the call.
func (c *StoreCall) receiptOf() receipt {
	r := receipt{what: whatHold + byte(c.Op-OpHold), ttl: ceilDiv(int64(c.TTL), micro), most: int64(c.Limit.config.MaxHolds), id: c.HoldID}
	if c.GiveBack || c.Limit.config.Algorithm == sluice.InFlight {
		r.flags |= flagGiveBack
	}
	if c.Op == OpSettle {
		r.ttl = ceilDiv(int64(c.Remember), micro)
	}
	if c.Over {
		r.flags |= flagOver
	}
	if c.OrNone {
		r.flags |= flagOrNone
	}
	if c.Once {
		r.flags |= flagOnce
	}
	if r.beyond = exact/2 - 1; c.Capped {
		r.beyond = min(int64(c.Debt), r.beyond)
	}
	if c.Step != "" {
		sum := sha256.Sum256([]byte(c.Step))
		r.step = string(sum[:16])
	}
	if c.HoldID != "" {
		r.flags |= flagChosen
	} else {
		r.id = newHoldID()
	}
	return r
}

// holdDecision describes the outcome of a call of a hold.
func (t *takeCall) holdDecision(r *reply) (d sluice.Decision, err error) {
	switch r.admitted {
	case saysNotHeld:
		return d, ErrNotHeld
	case saysManyHolds:
		return d, ErrManyHolds
	case saysOtherHold:
		return d, ErrOtherHold
	case saysEndedHold:
		return d, ErrEndedHold
	}
	if t.what == whatSettle {
		return t.plan.judge(r.view, 0, 0, false), nil
	}
	if r.said == saidAgain {
		return t.plan.describe(r.view, 0, 0, true), nil
	}
	return t.plan.describe(r.view, 0, t.cost, r.admitted > 0 && r.said != saidNone), nil
}
