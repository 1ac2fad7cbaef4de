// Package replay puts the requests of a log through rate limits, with the log's
// own time as the clock, and counts the requests that each limit would have denied.
package replay

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
)

// A Replay takes requests in log order and decides each under every rule, by the Clock of the log.
//
// Nothing is ever evicted and no two clients share a budget, so the decisions
// are exact; of a File, as exact as the rate limit service is. Memory grows with the number of clients and rules only.
type Replay struct {
	rules    []*ruleState
	log      Clock
	clock    *sluice.ManualClock // stands at log.Now
	clients  *Clients
	seen     []int64 // requests of each client
	requests int64
	timeline *timeline // rows: requests, denials by rule, and with Compare the changes
	denied   []bool    // the present request, by rule
	changes  *changes  // nil without Compare

	sparks map[int]*sparkline // of clients that are denied something; nil without Sparklines
	begin  int64              // the time of the first request
}

// ruleState is one rule in the course of a replay.
type ruleState struct {
	rule      Rule
	limiter   *sluice.Limiter // nil of a File
	only      []bool          // the clients that it is asked about; nil for all
	file      *fileState      // nil of a limit
	denied    int64
	clients   []denials // of each client, as far as it has been denied anything
	first     FirstDenial
	longest   streak
	decisions hash.Hash
	pending   []byte // decisions not yet hashed
}

// denials are the requests that a rule has denied to a client.
type denials struct {
	count  int64
	streak int64 // since its last request that was allowed
}

// streak is so many denials of a client in a row.
type streak struct {
	client int
	denied int64
}

// hashBatch is how many decisions are hashed at once.
const hashBatch = 4096

// New returns a Replay of the requests of clients through the given rules, or the reason why one of them
// cannot be enforced. It needs at least one rule, here or by AddFile.
func New(list []Rule, clients *Clients) (*Replay, error) {
	r := &Replay{clock: sluice.NewManualClock(time.Unix(0, 0)), clients: clients}
	for _, rule := range list {
		limiter, err := sluice.New(sluice.Config{
			Algorithm: rule.Algorithm,
			Limit:     rule.Limit,
			MaxKeys:   -1,
			Clock:     r.clock,
			Hash:      sluice.HashStable,
		})
		if err != nil {
			return nil, Refusal(rule, err)
		}
		r.rules = append(r.rules, &ruleState{rule: rule, limiter: limiter, decisions: sha256.New()})
	}
	return r, nil
}

// AddLogged makes the answers of the log another rule of the replay, by their status for a denial: see Rule. It must come before the first
// request.
func (r *Replay) AddLogged(status string) {
	r.rules = append(r.rules, &ruleState{rule: Rule{Logged: status}, decisions: sha256.New()})
}

// AllowOthers has the i-th rule allow all requests of clients that are not among some. It is for who knows that the rule denies them
// nothing.
func (r *Replay) AllowOthers(i int, some []bool) { r.rules[i].only = some }

// Refusal puts the error of a limiter into the words of a rule.
func Refusal(rule Rule, err error) error {
	if bad := (*sluice.ConfigError)(nil); errors.As(err, &bad) {
		part := strings.ToLower(strings.TrimPrefix(bad.Field, "Limit."))
		return fmt.Errorf("rule %s: %s %s", rule, part, bad.Reason)
	}
	return fmt.Errorf("rule %s: %w", rule, err)
}

// Add decides one request of a client that the log spells so, as Decide does. It does not retain client.
func (r *Replay) Add(client []byte, at int64, request *accesslog.Request) {
	r.Decide(r.clients.ID(client), at, request)
}

// Decide decides one request of a client at a time in nanoseconds since 1970, which
// must not be negative. If there is a File, or the log's own answers count, it needs request, the values in
// the log. It returns which rules deny it, in order; that holds until the next request.
func (r *Replay) Decide(id int, at int64, request *accesslog.Request) (denied []bool) {
	r.advance(at)
	r.requests++
	for len(r.seen) <= id {
		r.seen = append(r.seen, 0)
	}
	r.seen[id]++
	bin := r.timeline.reach(r.log.Now)
	r.timeline.rows[0][bin]++
	r.denied = r.denied[:0]
	for i, s := range r.rules {
		allowed := s.allow(r.log.Now, id, r.clients, request)
		r.denied = append(r.denied, !allowed)
		if allowed {
			s.record('A')
			if id < len(s.clients) {
				s.clients[id].streak = 0
			}
			continue
		}
		s.record('D')
		s.deny(id, r.requests, r.log.Now)
		r.timeline.rows[i+1][bin]++
	}
	if r.sparks != nil && slices.Contains(r.denied, true) {
		r.spark(id)
	}
	if r.changes == nil {
		return r.denied
	}
	keptOut, letIn := r.changes.see(id, r.log.Now, r.denied)
	if keptOut {
		r.timeline.rows[len(r.rules)+1][bin]++
	}
	if letIn {
		r.timeline.rows[len(r.rules)+2][bin]++
	}
	return r.denied
}

// advance moves the clocks. AllowAt takes a reading of
// the limiter's clock, so that clock has to move along: a limiter on the system's
// would take every client of an old log for idle, and forget it.
func (r *Replay) advance(at int64) {
	now := r.log.Advance(at)
	if r.requests == 0 {
		rows := 1 + len(r.rules)
		if r.changes != nil {
			rows += 2
		}
		r.timeline = newTimeline(at, rows)
		r.begin = at
	}
	r.clock.Set(time.Unix(0, now))
}

// deny counts a denial.
func (s *ruleState) deny(id int, request, now int64) {
	if s.denied++; s.denied == 1 {
		s.first = FirstDenial{Request: request, Time: now}
	}
	for len(s.clients) <= id {
		s.clients = append(s.clients, denials{})
	}
	d := &s.clients[id]
	d.count++
	if d.streak++; d.streak > s.longest.denied {
		s.longest = streak{id, d.streak}
	}
}

func (s *ruleState) allow(now int64, id int, clients *Clients, request *accesslog.Request) bool {
	switch {
	case s.rule.Logged != "":
		return request.Status != s.rule.Logged
	case s.file != nil:
		return s.file.allow(clients.Name(id), request)
	case s.only != nil && !s.only[id]:
		return true
	}
	// Numbering the clients rather than hashing their names makes a shared
	// budget impossible instead of improbable.
	return s.limiter.KeyUint64(uint64(id)).AllowAt(now, 1)
}

func (s *ruleState) record(decision byte) {
	s.pending = append(s.pending, decision)
	if len(s.pending) == hashBatch {
		s.flush()
	}
}

func (s *ruleState) flush() {
	s.decisions.Write(s.pending)
	s.pending = s.pending[:0]
}

// Result sums up a replay of at least one request, with the top clients of each
// rule by denials, so far.
func (r *Replay) Result(top int) Result {
	start, width, rows := r.timeline.columns(r.log.Unit)
	res := Result{
		Requests: r.requests,
		Clients:  r.clients.Len(),
		Private:  r.clients.Private(),
		First:    r.log.First,
		Last:     r.log.Now,
		Late:     r.log.Late,
		MaxLate:  r.log.MaxLate,
		Start:    start,
		Width:    width,
		OverTime: rows[0],
	}
	for i, s := range r.rules {
		res.Rules = append(res.Rules, r.ruleResult(s, top))
		res.Rules[i].OverTime = rows[i+1]
	}
	if r.changes != nil {
		res.Changes = r.changesResult(top, rows[len(r.rules)+1], rows[len(r.rules)+2])
	}
	return res
}

func (r *Replay) ruleResult(s *ruleState, top int) RuleResult {
	s.flush()
	limited := r.limited(s)
	rr := RuleResult{
		Rule:            s.rule,
		Allowed:         r.requests - s.denied,
		Denied:          s.denied,
		LimitedClients:  len(limited),
		DecisionsSHA256: hex.EncodeToString(s.decisions.Sum(nil)),
	}
	for _, id := range limited[:min(top, len(limited))] {
		rr.Top = append(rr.Top, r.client(id))
	}
	for _, id := range limited[:min(heaviest, len(limited))] {
		rr.HeaviestDenied += s.clients[id].count
	}
	if f := s.file; f != nil {
		rr.Limits, rr.Undescribed, rr.Refused = f.limits(), f.undescribed, f.refused
	}
	if s.denied > 0 {
		rr.FirstDenied = &s.first
		rr.LongestStreak = &Streak{r.clients.Name(s.longest.client), s.longest.denied}
	}
	return rr
}

// limited returns the clients that a rule denied anything: most denials first,
// and among equals in byte order of their names.
func (r *Replay) limited(s *ruleState) (ids []int) {
	for id, d := range s.clients {
		if d.count > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.clients[b].count, s.clients[a].count), strings.Compare(r.clients.Name(a), r.clients.Name(b)))
	})
	return ids
}

// client is a client of the result.
func (r *Replay) client(id int) Client {
	c := Client{Name: r.clients.Name(id), Requests: r.seen[id], Denied: make([]int64, len(r.rules))}
	for i, s := range r.rules {
		c.Denied[i] = s.deniedTo(id)
	}
	if s := r.sparks[id]; s != nil {
		c.OverTime = s.parts(r.log.Now - r.begin)
	}
	return c
}
