package replay

import (
	"cmp"
	"slices"
	"strings"
)

// Changes counts the requests whose decision changes when one rule takes the place of another.
type Changes struct {
	Old, New int // the two rules, of Result.Rules
	// Requests that only one of them denies.
	KeptOut, LetIn int64
	// The clients of these requests, of which some have both.
	KeptOutClients, LetInClients int
	// Clients that only one of the two denies anything.
	NewlyLimited, NoLongerLimited int
	// Top is the clients with the most of these requests.
	Top []ClientChanges
	// OverTime counts KeptOut and LetIn, in the columns of the Result.
	KeptOutOverTime, LetInOverTime []int64
}

// ClientChanges are the changes of one client.
type ClientChanges struct {
	Name           string
	Requests       int64
	OldDenied      int64
	NewDenied      int64
	KeptOut, LetIn int64
	First, Last    int64 // when requests changed sides, in nanoseconds since 1970
}

// changes is Changes in the course of a replay.
type changes struct {
	old, new int
	clients  []clientChanges // as far as they have any
}

type clientChanges struct{ keptOut, letIn, first, last int64 }

// Compare counts the changes when the second of two rules takes the place of the first. The numbers are
// of rules in the order of New and AddFile. It must come before the first request.
func (r *Replay) Compare(old, new int) { r.changes = &changes{old: old, new: new} }

// see looks at the denials of a request. It reports in which way it has changed sides.
func (c *changes) see(id int, now int64, denied []bool) (keptOut, letIn bool) {
	if denied[c.old] == denied[c.new] {
		return false, false
	}
	for len(c.clients) <= id {
		c.clients = append(c.clients, clientChanges{})
	}
	s := &c.clients[id]
	if s.keptOut+s.letIn == 0 {
		s.first = now
	}
	s.last = now
	if denied[c.new] {
		s.keptOut++
	} else {
		s.letIn++
	}
	return denied[c.new], denied[c.old]
}

// changesResult sums up the changes. keptOut and letIn are their columns.
func (r *Replay) changesResult(top int, keptOut, letIn []int64) *Changes {
	old, new := r.rules[r.changes.old], r.rules[r.changes.new]
	out := &Changes{Old: r.changes.old, New: r.changes.new, KeptOutOverTime: keptOut, LetInOverTime: letIn}
	for id := range max(len(old.clients), len(new.clients)) {
		before, after := old.deniedTo(id) > 0, new.deniedTo(id) > 0
		if !before && after {
			out.NewlyLimited++
		}
		if before && !after {
			out.NoLongerLimited++
		}
	}
	var changed []int
	for id, c := range r.changes.clients {
		out.KeptOut += c.keptOut
		out.LetIn += c.letIn
		if c.keptOut > 0 {
			out.KeptOutClients++
		}
		if c.letIn > 0 {
			out.LetInClients++
		}
		if c.keptOut+c.letIn > 0 {
			changed = append(changed, id)
		}
	}
	slices.SortFunc(changed, func(a, b int) int {
		x, y := r.changes.clients[a], r.changes.clients[b]
		return cmp.Or(cmp.Compare(y.keptOut+y.letIn, x.keptOut+x.letIn), strings.Compare(r.clients.Name(a), r.clients.Name(b)))
	})
	for _, id := range changed[:min(top, len(changed))] {
		c := r.changes.clients[id]
		out.Top = append(out.Top, ClientChanges{r.clients.Name(id), r.seen[id], old.deniedTo(id), new.deniedTo(id), c.keptOut, c.letIn, c.first, c.last})
	}
	return out
}

// deniedTo is how often the rule has denied a client something.
func (s *ruleState) deniedTo(id int) int64 {
	if id < len(s.clients) {
		return s.clients[id].count
	}
	return 0
}
