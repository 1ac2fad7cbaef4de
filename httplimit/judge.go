package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/policies"
)

// usual is the number of policies for which less space is made ready.
const usual = 2

type (
	policy = policies.Policy[*http.Request, own]
	entry  = policies.Entry[*http.Request, own]
	space  = policies.Judgement[*http.Request, own]
)

// own are the values that fields of a response tell of a policy.
type own struct {
	conf   sluice.Config // of a Limiter
	quoted string        // the name as a structured-field string
	unit   string
	terms  *atomic.Pointer[terms]
}

// newPolicies returns the policies in the order in which they are judged. The error is a *ConfigError.
func newPolicies(ps []Policy) ([]policy, error) {
	list := make([]policy, len(ps))
	for i, p := range ps {
		list[i] = policy{Name: p.Name, Limiter: p.Limiter, Remote: p.Remote, Shadow: p.Shadow, Key: p.Key, Cost: p.Cost, Limit: p.Limit, Settle: p.Settle, CountsDenialsOf: p.CountsDenialsOf, MaxPerKey: p.MaxPerKey, Own: own{unit: p.Unit}}
	}
	if field, reason := policies.Check(list, "requests"); reason != "" {
		return nil, &ConfigError{"Config." + field, reason}
	}
	for i, p := range ps {
		if !policies.Printable(p.Unit) {
			return nil, configErrorf(fmt.Sprintf("Config.Policies[%d].Unit", i), "%.80q cannot be a string in a header; want at most %d printable ASCII characters", p.Unit, policies.MaxName)
		}
	}
	policies.Order(list)
	for i := range list {
		p := &list[i]
		p.Own.quoted = quote(p.Name)
		if p.Remote != nil {
			continue
		}
		p.Own.conf = p.Limiter.Config()
		if p.Holds && p.Own.unit == "" {
			p.Own.unit = inUse
		}
		p.Own.terms = new(atomic.Pointer[terms])
		p.Own.terms.Store(newTerms(p.Own.conf))
	}
	return list, nil
}

// A judgement is a request in the eyes of the policies.
type judgement struct {
	space
	denied  bool      // and nothing stays charged
	running **running // the units that it holds of InFlight policies; nil if there are none
}

// statuses has the status that answers a request of each outcome.
var statuses = [...]int{
	policies.Denied:   http.StatusTooManyRequests,
	policies.Keyless:  http.StatusBadRequest,
	policies.Failed:   http.StatusServiceUnavailable,
	policies.Gone:     StatusClientGone,
	policies.Admitted: 0,
}

// judge charges the request to all policies, or denies it. With a queue it waits for its turn.
func (j *judgement) judge(ctx context.Context, lacks policies.Lacking, q *policies.Queue) (out Decision) {
	if q != nil {
		d := j.JudgeInTurn(ctx, lacks, q)
		out.tell(&d)
		return out
	}
	d := j.Judge(ctx, lacks)
	out.tell(&d)
	return out
}

// tell puts the outcome into the words of this package. (It writes in place, since copies of a Decision take time.)
func (out *Decision) tell(d *policies.Decision) {
	out.Allowed, out.Status = d.Outcome == policies.Admitted, statuses[d.Outcome]
	out.Violated, out.WouldDeny, out.OverSoft = d.Violated, d.WouldDeny, d.OverSoft
	out.Remaining, out.RetryAfter, out.Waited, out.KeyError = d.Remaining, d.RetryAfter, d.Waited, d.KeyError
	if d.FarError != nil {
		out.RemoteError = fmt.Errorf("httplimit: %w", d.FarError)
	}
}

// explain lists the charges.
func (j *judgement) explain() []PolicyCharge {
	list := make([]PolicyCharge, len(j.Entries))
	for i := range j.Entries {
		e := &j.Entries[i]
		list[i] = PolicyCharge{Policy: e.Policy.Name, Key: e.Key, Cost: j.Charges[i].Cost}
	}
	return list
}
