package service

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/uplot"
	"github.com/sluice-go/sluice/internal/spacesaving"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

//go:embed live/live.html live/live.css live/live.js
var liveFiles embed.FS

const (
	maxWatchers  = 16   // browsers at once
	liveRules    = 100  // rules shown, those with the most denied hits first
	liveKeys     = 20   // keys shown
	countedKeys  = 1024 // that are counted: those with more than one in so many denials are among them
	liveEvery    = time.Second
	liveUnread   = 4                // states that wait for a watcher; one that reads slower is dropped
	liveDeadline = 10 * time.Second // to write one state
)

// live tells browsers the decisions of the service. Without a watcher the totals of rules are noted every historyEvery, no key is counted,
// and a denial costs one load of a pointer.
type live struct {
	*server
	seed    maphash.Seed // of the hashes of keys, other in each process
	keys    atomic.Pointer[spacesaving.Top]
	started time.Time
	history history

	mutex    sync.Mutex
	watchers map[chan []byte]bool
	stop     chan struct{} // of the goroutine that tells; nil without a watcher
}

func newLive(s *server) *live {
	return &live{server: s, seed: maphash.MakeSeed(), started: time.Now(), watchers: map[chan []byte]bool{}}
}

// denied counts the keys of a denied call, while somebody watches.
func (l *live) denied(req *rules.Request, resp *rules.Response) {
	top := l.keys.Load()
	if top == nil {
		return
	}
	for i := range resp.Statuses {
		if resp.Statuses[i].Code == rules.OverLimit {
			l.count(top, req.Domain, &req.Descriptors[i], resp.Statuses[i].Rule)
		}
	}
}

func (l *live) count(top *spacesaving.Top, domain string, d *rules.Descriptor, rule *rules.Rule) {
	set, _ := l.engine.Set()
	top.Count(l.keyOf(set, domain, d, rule))
}

// keyOf is the id and the name of a key of a set: the path of its rule, and with --live-keys the entries behind it.
func (l *live) keyOf(set *rules.Set, domain string, d *rules.Descriptor, rule *rules.Rule) (id uint64, name string) {
	path := domain + ".override"
	if rule != nil {
		path = rule.Path()
	}
	b := make([]byte, 0, 256)
	b = append(append(b, path...), 0)
	for _, e := range set.Named(domain, d.Entries) {
		b = fmt.Appendf(b, "%q=%q ", e.Key, e.Value)
	}
	if id = maphash.Bytes(l.seed, b); l.config.LiveKeys {
		return id, string(b)
	}
	return id, path
}

// nameOf is the rule and the key of a counter, or a hash of the key.
func nameOf(c *spacesaving.Counter) (rule, key string) {
	path, entries, plain := bytes.Cut([]byte(c.Name), []byte{0})
	if !plain {
		return text(string(path)), fmt.Sprintf("%016x", c.ID)
	}
	return text(string(path)), text(string(bytes.TrimSuffix(entries, []byte(" "))))
}

// liveState is one message to a watcher.
type liveState struct {
	Time    float64     `json:"time"`    // Unix seconds of the system's clock
	Started float64     `json:"started"` // likewise
	Rules   []liveRule  `json:"rules"`
	More    int         `json:"more"` // rules that are not shown
	Keys    []liveKey   `json:"keys"`
	Store   []liveStore `json:"store"`
	Holds   liveHolds   `json:"holds"`
}

type liveRule struct {
	Name     string `json:"name"`
	Limit    string `json:"limit"`
	Admitted uint64 `json:"admitted"` // hits, since the rule is there
	Denied   uint64 `json:"denied"`
}

// liveHolds are the holds of this process.
type liveHolds struct {
	Open int    `json:"open"` // -1 if only the store knows
	Made uint64 `json:"made"`
}

type liveKey struct {
	Rule   string `json:"rule"`
	Key    string `json:"key"`
	Denied uint64 `json:"denied"` // calls, since the first watcher came
}

type liveStore struct {
	Name  string  `json:"name"`
	Mode  string  `json:"mode"`  // in plain words
	Bad   bool    `json:"bad"`   // the store does not answer
	Since float64 `json:"since"` // Unix seconds; 0 if it cannot change
}

func (l *live) state() []byte {
	out := liveState{Time: unix(time.Now()), Started: unix(l.started), Keys: []liveKey{}, Store: l.stores()}
	all, _ := l.rules()
	out.Rules = all[:min(liveRules, len(all))]
	out.More = len(all) - len(out.Rules)
	l.addLimits(out.Rules)
	if top := l.keys.Load(); top != nil {
		out.Keys = l.topKeys(top)
	}
	holds := l.engine.Holds()
	out.Holds = liveHolds{holds.Open, holds.Held}
	if l.store != nil {
		out.Holds.Open = -1
	}
	data, err := json.Marshal(out)
	if err != nil {
		panic(err) // there is nothing in it that JSON cannot have
	}
	return append(append([]byte("data: "), data...), "\n\n"...)
}

func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// rules returns the admitted and denied hits of each rule, the most denied first, and the sum.
func (l *live) rules() (all []liveRule, sum liveRule) {
	all = []liveRule{}
	for _, x := range l.engine.Series() {
		denied := x.Over - min(x.Over, x.Shadow)
		r := liveRule{Name: text(x.Path), Admitted: x.Unlimited + x.Total - min(x.Total, denied), Denied: denied}
		sum.Admitted, sum.Denied = sum.Admitted+r.Admitted, sum.Denied+r.Denied
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b liveRule) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Admitted, a.Admitted))
	})
	return all, sum
}

// addLimits says which limits the rules have. A rule that has been loaded since, or is no longer there, has none.
func (l *live) addLimits(shown []liveRule) {
	byName := map[string]*liveRule{}
	for i := range shown {
		byName[shown[i].Name] = &shown[i]
	}
	set, _ := l.engine.Set()
	for _, r := range set.Rules() {
		if one := byName[text(r.Path())]; one != nil {
			one.Limit = limitText(r)
		}
	}
}

// limitText is the limit of a rule in plain words.
func limitText(r *rules.Rule) string {
	limit := fmt.Sprintf("%d per %s", r.Requests(), strings.ToLower(r.Unit().String()))
	switch {
	case r.Unlimited():
		limit = "unlimited"
	case r.Calendar() != (sluice.Calendar{}):
		limit = sluice.PerCalendar(int(r.Requests()), r.Calendar()).String()
	case r.Algorithm() == sluice.InFlight:
		limit = sluice.AtOnce(int(r.Requests()), r.Period()).String()
	case r.Unit() == rules.UnknownUnit:
		limit = fmt.Sprintf("%d per %v", r.Requests(), r.Period())
	}
	if r.Shadow() {
		limit += ", in shadow mode"
	}
	return limit
}

// stores says where counts are, and in which mode.
func (l *live) stores() (out []liveStore) {
	for i, p := range l.store.parts() {
		s := p.Status()
		one := liveStore{Name: []string{"redis", "redis-per-second"}[i], Since: float64(s.Since.UnixMilli()) / 1e3}
		switch one.Bad = s.Mode == redislimit.ModeDegraded; {
		case !one.Bad:
			one.Mode = "all replicas count together"
		case l.config.Store.OnFailure == failures[redislimit.FailOpen]:
			one.Mode = "it does not answer, and this process admits what it is asked"
		case l.config.Store.OnFailure == failures[redislimit.FailClosed]:
			one.Mode = "it does not answer, and calls get an error"
		default:
			one.Mode = "it does not answer, and this process enforces its share of each limit"
		}
		out = append(out, one)
	}
	if out == nil {
		out = []liveStore{{Name: "memory", Mode: "this process counts, for itself"}}
	}
	return out
}

func (l *live) topKeys(top *spacesaving.Top) []liveKey {
	counters := top.List()
	slices.SortFunc(counters, func(a, b spacesaving.Counter) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.ID, b.ID))
	})
	out := []liveKey{}
	for _, c := range counters[:min(liveKeys, len(counters))] {
		rule, key := nameOf(&c)
		out = append(out, liveKey{Rule: rule, Key: key, Denied: c.Count})
	}
	return out
}

// join adds a watcher, and lets the first one begin the counting of keys. It returns nil if there are too many.
func (l *live) join() chan []byte {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.watchers) >= maxWatchers {
		return nil
	}
	if l.stop == nil {
		l.stop = make(chan struct{})
		l.keys.Store(spacesaving.New(countedKeys))
		go l.tellAll(l.stop)
	}
	states := make(chan []byte, liveUnread)
	l.watchers[states] = true
	return states
}

// leave takes a watcher off; with the last one the counting ends.
func (l *live) leave(states chan []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.watchers, states)
	if len(l.watchers) == 0 && l.stop != nil {
		close(l.stop)
		l.stop = nil
		l.keys.Store(nil)
	}
}

func (l *live) tellAll(stop <-chan struct{}) {
	ticker := time.NewTicker(liveEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			l.tell(l.state())
		}
	}
}

// tell hands a state to all watchers, and drops watchers that have not read the states before.
func (l *live) tell(state []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for states := range l.watchers {
		select {
		case states <- state:
		default:
			delete(l.watchers, states)
			close(states)
		}
	}
}

// events is the stream of states, as server-sent events. It ends with the service.
func (l *live) events(w http.ResponseWriter, r *http.Request) {
	states := l.join()
	if states == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d watch already, and more cannot", maxWatchers), http.StatusServiceUnavailable)
		return
	}
	defer l.leave(states)
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Time{}) // the deadline of a request would end the stream
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	for state := l.state(); ; {
		_ = stream.SetWriteDeadline(time.Now().Add(liveDeadline))
		if _, err := w.Write(state); err != nil || stream.Flush() != nil {
			return
		}
		var more bool
		select {
		case state, more = <-states:
			if !more {
				return
			}
		case <-r.Context().Done():
			return
		case <-l.ending:
			return
		}
	}
}

// page serves the files of the page.
func (l *live) page(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	if name == "" {
		name = "live.html"
	}
	data, err := []byte(nil), error(nil)
	switch name {
	case "uplot.js":
		data = []byte("/*\n" + uplot.Licence + "*/\n" + uplot.JS)
	case "uplot.css":
		data = []byte(uplot.CSS)
	default:
		data, err = liveFiles.ReadFile("live/" + name)
	}
	if err != nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}
