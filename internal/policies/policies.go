// Package policies judges requests by several limits together: their charges, all or none, the content of a denial, units given
// back, and the final cost. The middlewares of httplimit and the interceptors of grpclimit judge by it, each for its own kind
// of requests, and put the outcome into its own words.
package policies

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/lag"
)

// A Remote is a httplimit.Remote, which this package cannot name: httplimit imports it.
type Remote interface {
	Take(ctx context.Context, key string, cost int) (sluice.Decision, error)
	Refund(ctx context.Context, key string, cost int) error
}

// A RemoteDebiter is a httplimit.RemoteDebiter.
type RemoteDebiter interface {
	Remote
	Debit(ctx context.Context, key string, cost int) (sluice.Decision, error)
}

// A Policy is one limit for requests of type R, with the surface's own part of it, a P. Cost, Limit and Settle can be nil.
type Policy[R, P any] struct {
	Name    string
	Limiter *sluice.Limiter
	Remote  Remote
	Shadow  bool // of a Remote
	Key     func(R) (key string, err error)
	Cost    func(R) int
	Limit   func(R) (sluice.Limit, error)
	Settle  func(r R, status int) (cost int)
	Own     P

	// CountsDenialsOf is the name of another policy: this one is charged for its denials only, and empty if it is charged for
	// requests.
	CountsDenialsOf string

	// MaxPerKey is how many requests may have a place at one key of a Queue; 0 for the Queue's own.
	MaxPerKey int

	// What Order finds out of the Limiter.
	Kind  Kind
	Holds bool          // it is of InFlight
	Lag   time.Duration // how far its clock can be behind
}

// A Kind of policies, in the order in which they are judged: local policies first, which are decided at once and
// may spare a question, and nothing in shadow mode for requests that are denied.
type Kind int

// The kinds.
const (
	Local Kind = iota
	Far        // with a Remote
	LocalShadow
	FarShadow
	kinds
)

// MaxName is the most bytes of a name.
const MaxName = 64

// Printable reports whether a text of at most MaxName bytes is of printable ASCII.
func Printable(s string) bool {
	return len(s) <= MaxName && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// Check returns the field of the first policy that is invalid, and its mistake, or two empty texts. The word for requests
// in the reason is the surface's.
func Check[R, P any](ps []Policy[R, P], requests string) (field, reason string) {
	if len(ps) == 0 {
		return "Policies", "there is none, so that nothing would be limited; want at least one"
	}
	seen := make(map[string]int)
	for i := range ps {
		field, reason = ps[i].check(requests)
		if first, ok := seen[ps[i].Name]; ok && reason == "" {
			field, reason = "Name", fmt.Sprintf("%q is the name of policy %d, too; want another", ps[i].Name, first)
		}
		if reason != "" {
			return fmt.Sprintf("Policies[%d].%s", i, field), reason
		}
		seen[ps[i].Name] = i
	}
	for i := range ps {
		if reason = checkDenials(ps, i, seen); reason != "" {
			return fmt.Sprintf("Policies[%d].CountsDenialsOf", i), reason
		}
	}
	return "", ""
}

func (p *Policy[R, P]) check(requests string) (field, reason string) {
	switch {
	case p.Name == "":
		return "Name", `is empty; want a name, such as "per-client"`
	case !Printable(p.Name):
		return "Name", fmt.Sprintf("%.80q cannot be shown to clients; want 1 to %d printable ASCII characters", p.Name, MaxName)
	case p.Limiter == nil && p.Remote == nil:
		return "Limiter", "is nil, and so is Remote; want a limiter, as from sluice.New, or a Remote"
	case p.Limiter != nil && p.Remote != nil:
		return "Remote", "is set, and so is Limiter; want one of them, and another policy for the other"
	case p.Remote != nil && reflect.ValueOf(p.Remote).Kind() == reflect.Pointer && reflect.ValueOf(p.Remote).IsNil():
		return "Remote", fmt.Sprintf("is a nil %T; want one that has been made", p.Remote)
	case heldFar(p.Remote):
		return "Remote", fmt.Sprintf("is a %T of InFlight, whose units nobody would give back when %s end, or renew while they run; want a Limiter of InFlight in each process, or a Remote of another algorithm", p.Remote, requests)
	case p.Shadow && p.Remote == nil:
		return "Shadow", "is set for a Limiter, which has a switch of its own; want sluice.Config.Shadow"
	case p.Limit != nil && p.Remote != nil:
		return "Limit", "is set for a Remote, which keeps one limit; want a Limiter, or nil"
	case p.Settle != nil && p.Limiter != nil && p.Limiter.Config().Algorithm == sluice.InFlight:
		return "Settle", "is set for a Limiter of in-flight, whose units come back when " + requests + " end; want none"
	case p.Key == nil:
		return "Key", "is nil; want a function that returns what " + requests + " are counted under"
	}
	return "", ""
}

// heldFar reports whether a Remote says that it keeps units in flight.
func heldFar(r Remote) bool {
	a, ok := r.(interface{ Algorithm() sluice.Algorithm })
	return ok && a.Algorithm() == sluice.InFlight
}

// Order puts policies that are valid into the order in which they are judged.
func Order[R, P any](ps []Policy[R, P]) {
	for i := range ps {
		p := &ps[i]
		switch {
		case p.Remote != nil && p.Shadow:
			p.Kind = FarShadow
		case p.Remote != nil:
			p.Kind = Far
		default:
			c := p.Limiter.Config()
			p.Holds, p.Lag = c.Algorithm == sluice.InFlight, lag.Of(c.Clock)
			if p.Kind = Local; c.Shadow {
				p.Kind = LocalShadow
			}
		}
	}
	slices.SortStableFunc(ps, func(a, b Policy[R, P]) int { return cmp.Compare(a.Kind, b.Kind) })
}

// shadows reports whether the policy denies nothing.
func (p *Policy[R, P]) shadows() bool { return p.Kind >= LocalShadow }

// keys returns the key of a request, and the Limiter's handle of it, if there is a Limiter.
func (p *Policy[R, P]) keys(r R) (key string, k sluice.Key, err error) {
	if key, err = p.Key(r); err != nil || p.Remote != nil {
		return key, k, err
	}
	k = p.Limiter.Key(key)
	if p.Limit == nil {
		return key, k, nil
	}
	limit, err := p.Limit(r)
	if err == nil && limit != (sluice.Limit{}) {
		k, err = k.WithLimit(limit)
	}
	return key, k, err
}

// AnyHolds reports whether a policy is of InFlight.
func AnyHolds[R, P any](ps []Policy[R, P]) bool {
	return slices.ContainsFunc(ps, func(p Policy[R, P]) bool { return p.Holds })
}

// AnyFar reports whether a policy has a Remote.
func AnyFar[R, P any](ps []Policy[R, P]) bool {
	return slices.ContainsFunc(ps, func(p Policy[R, P]) bool { return p.Remote != nil })
}
