package rules

import (
	"errors"
	"fmt"
)

// A ResetStore is a Store that makes keys fresh.
type ResetStore interface {
	Store

	// Reset takes all hits off the keys of the calls, of their second budgets too. Holds of the keys that are open have then ended:
	// to settle them is ErrNotHeld. Hits that were denied, and that a key's count had, have then never been counted. After an error
	// some of the keys may be fresh.
	Reset(calls []StoreCall) error
}

// ErrNoReset: the engine's Store is no ResetStore.
var ErrNoReset = errors.New("rules: the store makes no keys fresh")

// Reset makes the keys of all descriptors fresh, also of their second budgets: nothing counts against them any more, and they are
// blocked no longer. A window is shared by all rules and overrides of its unit for the same entries. Hits are ignored. A hold that is open
// gives nothing back to such a key, and is charged nothing there; a call about it gets ErrNotHeld, and its other limits lapse.
//
// It is for operators: to free a client that a wrong number has locked. The error is an *InvalidError, and nothing has changed, if a
// descriptor has no limit. Statistics stay as they are.
func (e *Engine) Reset(req *Request) error {
	if err := req.check(); err != nil {
		return err
	}
	g := e.now.Load()
	d := g.domains[req.Domain]
	if d == nil {
		return &InvalidError{fmt.Sprintf("domain %.64q has no rules; want a domain that has", req.Domain)}
	}
	resp := new(Response)
	resp.reset(len(req.Descriptors))
	for i := range req.Descriptors {
		if e.resolve(g, d, req, resp, i); !resp.work[i].limited {
			return &InvalidError{fmt.Sprintf("descriptor %d: no rule limits it; want the entries of a rule that has a limit", i)}
		}
	}
	resp.fill(g, d, req, e.clock.Now())
	return e.counts.reset(req.Domain, &resp.batch)
}
