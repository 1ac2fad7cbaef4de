// Package trial has rules judge the calls of a running service beside the rules in force, which go on to answer them, and says who
// would change sides. The service makes a Trial; a program asks for one by Ask.
package trial

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/rules"
)

const (
	maxClients = 10_000 // that are counted by themselves
	shown      = 20     // rules, and clients, of a Result
)

// A Result is the calls of a Trial. Both kinds of calls that change sides are counted by the rule that denies them, and by client.
type Result struct {
	Seconds   float64 `json:"seconds"`
	Calls     uint64  `json:"calls"`
	Denied    uint64  `json:"denied"`     // by the rules in force
	WouldDeny uint64  `json:"would_deny"` // by the rules on trial
	KeptOut   uint64  `json:"kept_out"`   // passed, and would be denied
	LetIn     uint64  `json:"let_in"`     // denied, and would pass
	Failed    uint64  `json:"failed"`     // that the rules on trial could not judge
	// Fresh reports that the counts on trial began at 0. Otherwise they went on from the counts of the service.
	Fresh bool `json:"fresh"`

	Rules   []Side `json:"rules"`   // by their paths, the first of all
	Clients []Side `json:"clients"` // likewise, by their entries, or by a hash if the service names nobody
	// MoreRules and MoreClients are how many there are beside these; of the clients, MoreClients is at most 10,000.
	MoreRules   int `json:"more_rules"`
	MoreClients int `json:"more_clients"`
}

// A Side is the calls of one rule, or client, that change sides.
type Side struct {
	Name    string `json:"name"`
	KeptOut uint64 `json:"kept_out"`
	LetIn   uint64 `json:"let_in"`
}

// A Trial judges calls by an engine of its own. It is safe for concurrent use.
type Trial struct {
	engine  *rules.Engine
	names   bool
	seed    maphash.Seed
	scratch sync.Pool // of *rules.Response

	mutex   sync.Mutex // guards the rest
	result  Result
	rules   map[string]*Side
	clients map[uint64]*Side
}

// New returns a Trial of the rules of an engine, whose counts begin at 0 if fresh is true. names says whether its Result has the entries of clients.
func New(engine *rules.Engine, fresh, names bool) *Trial {
	return &Trial{
		engine: engine, names: names, seed: maphash.MakeSeed(), scratch: sync.Pool{New: func() any { return new(rules.Response) }},
		result: Result{Fresh: fresh}, rules: map[string]*Side{}, clients: map[uint64]*Side{},
	}
}

// Judge judges a call that the rules in force have answered.
func (t *Trial) Judge(req *rules.Request, before *rules.Response) {
	after := t.scratch.Get().(*rules.Response)
	defer t.scratch.Put(after)
	err := t.engine.Decide(req, after)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r := &t.result
	if r.Calls++; err != nil {
		r.Failed++
		return
	}
	was, would := denies(before), denies(after)
	if was {
		r.Denied++
	}
	if would {
		r.WouldDeny++
	}
	switch {
	case would && !was:
		r.KeptOut++
		for _, s := range t.sides(req, after) {
			s.KeptOut++
		}
	case was && !would:
		r.LetIn++
		for _, s := range t.sides(req, before) {
			s.LetIn++
		}
	}
}

// denies reports whether a call is denied, or would be without --shadow.
func denies(resp *rules.Response) bool { return resp.Code == rules.OverLimit || resp.WouldDeny }

// sides are the rule, and the client, of a denial. A client beyond the bound is not counted by itself.
func (t *Trial) sides(req *rules.Request, resp *rules.Response) (sides []*Side) {
	path := resp.DeniedBy()
	rule := t.rules[path]
	if rule == nil {
		rule = &Side{Name: path}
		t.rules[path] = rule
	}
	sides = append(sides, rule)
	i := resp.Tightest
	if i < 0 || resp.Statuses[i].Code != rules.OverLimit {
		i = slices.IndexFunc(resp.Statuses, func(s rules.Status) bool { return s.Code == rules.OverLimit })
	}
	if i < 0 {
		return sides
	}
	name := []byte(nil)
	for j, e := range req.Descriptors[i].Entries {
		if j > 0 {
			name = append(name, ' ')
		}
		name = fmt.Appendf(name, "%q=%q", e.Key, e.Value)
	}
	id := maphash.Bytes(t.seed, name)
	client := t.clients[id]
	if client == nil && len(t.clients) < maxClients {
		client = &Side{Name: fmt.Sprintf("%016x", id)}
		if t.names {
			client.Name = string(name)
		}
		t.clients[id] = client
	}
	if client != nil {
		sides = append(sides, client)
	}
	return sides
}

// Result returns the calls so far, of a trial that has gone on for a time.
func (t *Trial) Result(took time.Duration) Result {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	out := t.result
	out.Seconds = took.Seconds()
	out.Rules, out.MoreRules = most(t.rules)
	out.Clients, out.MoreClients = most(t.clients)
	return out
}

// most returns the sides with the most calls, and how many others there are.
func most[K comparable](of map[K]*Side) (list []Side, more int) {
	list = make([]Side, 0, len(of))
	for _, s := range of {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b Side) int {
		return cmp.Or(cmp.Compare(b.KeptOut+b.LetIn, a.KeptOut+a.LetIn), cmp.Compare(a.Name, b.Name))
	})
	n := min(len(list), shown)
	return slices.Clip(list[:n]), len(list) - n
}
