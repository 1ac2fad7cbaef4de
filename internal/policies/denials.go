package policies

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/lag"
)

// checkDenials returns what is wrong with the policy's CountsDenialsOf, or an empty text. at has the index of each name.
func checkDenials[R, P any](ps []Policy[R, P], i int, at map[string]int) (reason string) {
	p := &ps[i]
	of, known := at[p.CountsDenialsOf]
	switch {
	case p.CountsDenialsOf == "":
		return ""
	case of == i && known:
		return fmt.Sprintf("%q is the policy itself; want the name of another", p.Name)
	case !known:
		var names []string
		for j := range ps {
			if j != i {
				names = append(names, ps[j].Name)
			}
		}
		return fmt.Sprintf("%q is the name of no policy; want one of %q", p.CountsDenialsOf, names)
	case p.Limiter != nil && p.Limiter.Config().Algorithm == sluice.InFlight:
		return "is set for a Limiter of in-flight, and what is denied does not run; want another algorithm"
	case p.Settle != nil:
		return "is set, and so is Settle, which is not asked about what is denied; want one of them"
	}
	for range ps {
		if of, known = at[ps[of].CountsDenialsOf]; !known {
			return ""
		}
	}
	return fmt.Sprintf("%q counts denials of this policy in turn, so that none of them ever denies; want the name of a policy that counts requests", p.CountsDenialsOf)
}

// countDenials charges the policies that count denials of a policy that has denied the request, and has the request denied by
// those that deny from now on. A policy in shadow mode counts what others in shadow mode would deny, too. A policy that denies
// already counts nothing.
func (j *Judgement[R, P]) countDenials(ctx context.Context, d Decision) Decision {
	violated, would := d.Violated, d.WouldDeny
	for i := range j.Entries {
		e := &j.Entries[i]
		name, of, shadows := e.Policy.Name, e.Policy.CountsDenialsOf, e.Policy.shadows()
		counts := slices.Contains(violated, of) || shadows && slices.Contains(would, of)
		if of == "" || !counts || e.onDenial < 1 || slices.Contains(violated, name) || slices.Contains(would, name) {
			continue
		}
		j.Charges[i].Cost = e.onDenial
		state, err := e.countDenial(ctx, j.Charges[i].Key)
		if err != nil {
			if d.FarError == nil {
				d.FarError = err
			}
			continue
		}
		if e.Policy.Remote == nil && j.States != nil {
			j.States[i] = state
		}
		switch {
		case state.Allowed && !state.WouldDeny:
		case !shadows && !state.WouldDeny:
			d.Violated = append(d.Violated, name)
			d.RetryAfter = max(d.RetryAfter, lag.Later(state.RetryAfter, e.Policy.Lag))
		case d.Outcome == Admitted:
			d.WouldDeny = append(d.WouldDeny, name)
		}
	}
	if len(d.Violated) > len(violated) {
		d.Violated = j.inOrder(d.Violated)
	}
	return d
}

// inOrder returns the names in the order in which the policies are judged.
func (j *Judgement[R, P]) inOrder(names []string) (sorted []string) {
	for i := range j.Entries {
		if name := j.Entries[i].Policy.Name; slices.Contains(names, name) {
			sorted = append(sorted, name)
		}
	}
	return sorted
}

// countDenial charges the entry for a denial, as many units as there are, and blocks its key when none remains. It returns how the key
// stands then.
func (e *Entry[R, P]) countDenial(ctx context.Context, k sluice.Key) (d sluice.Decision, err error) {
	if e.Policy.Remote == nil {
		if _, d = k.TakeUpTo(e.onDenial); d.Allowed && d.Remaining == 0 {
			k.Block(e.Policy.Limiter.Config().BlockFor)
		}
		return k.Peek(0), nil
	}
	ctx, cancel := outliving(ctx)
	defer cancel()
	err = e.ask(ctx, e.onDenial)
	if err == nil && !e.charged && e.Asked.Remaining > 0 {
		err = e.ask(ctx, e.Asked.Remaining)
	}
	if err == nil && e.charged && e.Asked.Remaining == 0 {
		err = e.ask(ctx, 1) // is denied, which blocks the key
	}
	if err != nil {
		return d, err
	}
	return e.Asked.Decision, nil
}
