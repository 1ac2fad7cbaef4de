// Package replay puts the requests of a log through rate limits, with the log's
// own time as the clock, and counts what each limit would have denied.
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
	"github.com/sluice-go/sluice/cmd/sluice/internal/accesslog"
)

// A Replay takes requests in log order and decides each under every rule.
//
// The clock is common to all clients and rules and never goes back: it stands at
// the latest time of any request so far. Logs are written when requests end, and
// by many workers at once, so a request that is a little earlier than the one
// before it is the rule; a server would have decided it at the time it came up.
//
// A client is what the middleware of httplimit takes for one: an IPv4 address, or an
// IPv6 network. Nothing is ever evicted and no two clients share a budget, so the decisions
// are exact; of a File, as exact as the rate limit service is. Memory grows with the number of clients and rules only.
type Replay struct {
	rules    []*ruleState
	clock    *sluice.ManualClock
	now      int64
	earliest int64
	late     int64
	maxLate  int64
	requests int64
	unit     time.Duration // a second, unless a time was not a whole number of them
	namer    *namer
	ids      map[string]int
	clients  []Client
	public   bool // a client has no private address
	timeline *timeline
}

// ruleState is one rule in the course of a replay.
type ruleState struct {
	rule      Rule
	limiter   *sluice.Limiter // nil of a File
	file      *fileState      // nil of a limit
	denied    int64
	first     FirstDenial
	decisions hash.Hash
	pending   []byte // decisions not yet hashed
}

// hashBatch is how many decisions are hashed at once.
const hashBatch = 4096

// New returns a Replay through the given rules, or the reason why one of them
// cannot be enforced. It needs at least one rule, here or by AddFile. All IPv6 addresses with the same
// first ipv6Prefix bits are one client.
func New(list []Rule, ipv6Prefix int) (*Replay, error) {
	namer, err := newNamer(ipv6Prefix)
	if err != nil {
		return nil, err
	}
	r := &Replay{
		clock: sluice.NewManualClock(time.Unix(0, 0)),
		unit:  time.Second,
		namer: namer,
		ids:   make(map[string]int),
	}
	for _, rule := range list {
		limiter, err := sluice.New(sluice.Config{
			Algorithm: rule.Algorithm,
			Limit:     rule.Limit,
			MaxKeys:   -1,
			Clock:     r.clock,
			Hash:      sluice.HashStable,
		})
		if err != nil {
			return nil, refusal(rule, err)
		}
		r.rules = append(r.rules, &ruleState{rule: rule, limiter: limiter, decisions: sha256.New()})
	}
	return r, nil
}

// refusal puts the error of a limiter into the words of a rule.
func refusal(rule Rule, err error) error {
	if bad := (*sluice.ConfigError)(nil); errors.As(err, &bad) {
		part := strings.ToLower(strings.TrimPrefix(bad.Field, "Limit."))
		return fmt.Errorf("rule %s: %s %s", rule, part, bad.Reason)
	}
	return fmt.Errorf("rule %s: %w", rule, err)
}

// Add decides one request of client at a time in nanoseconds since 1970, which
// must not be negative. It does not retain client. If there is a File it needs request, what else the log
// says.
func (r *Replay) Add(client []byte, at int64, request *accesslog.Request) {
	r.advance(at)
	r.requests++
	id := r.id(r.namer.name(client))
	seen := &r.clients[id]
	seen.Requests++
	bin := r.timeline.reach(r.now)
	r.timeline.rows[0][bin]++
	for i, s := range r.rules {
		if s.allow(r.now, id, seen.Name, request) {
			s.record('A')
			continue
		}
		s.record('D')
		if s.denied++; s.denied == 1 {
			s.first = FirstDenial{Request: r.requests, Time: r.now}
		}
		seen.Denied[i]++
		r.timeline.rows[i+1][bin]++
	}
}

// advance moves the clock to at unless it is past it. AllowAt takes a reading of
// the limiter's clock, so that clock has to move along: a limiter on the system's
// would take every client of an old log for idle, and forget it.
func (r *Replay) advance(at int64) {
	if r.requests == 0 {
		r.now, r.earliest = at, at
		r.timeline = newTimeline(at, 1+len(r.rules))
	}
	if at%int64(time.Second) != 0 {
		r.unit = 1
	}
	r.earliest = min(r.earliest, at)
	if at < r.now {
		r.late++
		r.maxLate = max(r.maxLate, r.now-at)
		return
	}
	r.now = at
	r.clock.Set(time.Unix(0, at))
}

func (r *Replay) id(client []byte) int {
	id, ok := r.ids[string(client)]
	if !ok {
		id = len(r.clients)
		name := string(client)
		r.ids[name] = id
		r.clients = append(r.clients, Client{Name: name, Denied: make([]int64, len(r.rules))})
		r.public = r.public || !isPrivate(name)
	}
	return id
}

func (s *ruleState) allow(now int64, id int, client string, request *accesslog.Request) bool {
	if s.file != nil {
		return s.file.allow(client, request)
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
// rule by denials. It ends the replay.
func (r *Replay) Result(top int) Result {
	start, width := r.timeline.columns(r.unit)
	res := Result{
		Requests: r.requests,
		Clients:  len(r.clients),
		Private:  !r.public,
		First:    r.earliest,
		Last:     r.now,
		Late:     r.late,
		MaxLate:  time.Duration(r.maxLate),
		Start:    start,
		Width:    width,
		OverTime: r.timeline.rows[0],
	}
	for i, s := range r.rules {
		s.flush()
		limited := r.limited(i)
		rr := RuleResult{
			Rule:            s.rule,
			Allowed:         r.requests - s.denied,
			Denied:          s.denied,
			LimitedClients:  len(limited),
			Top:             limited[:min(top, len(limited))],
			DecisionsSHA256: hex.EncodeToString(s.decisions.Sum(nil)),
			OverTime:        r.timeline.rows[i+1],
		}
		if f := s.file; f != nil {
			rr.Limits, rr.Undescribed, rr.Refused = f.limits(), f.undescribed, f.refused
		}
		if s.denied > 0 {
			rr.FirstDenied = &s.first
		}
		res.Rules = append(res.Rules, rr)
	}
	return res
}

// limited returns the clients that a rule denied anything: most denials first,
// and among equals in byte order of their names.
func (r *Replay) limited(rule int) []Client {
	var limited []Client
	for _, c := range r.clients {
		if c.Denied[rule] > 0 {
			limited = append(limited, c)
		}
	}
	slices.SortFunc(limited, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.Denied[rule], a.Denied[rule]), strings.Compare(a.Name, b.Name))
	})
	return limited
}
