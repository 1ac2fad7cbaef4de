package service

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/trial"
	"github.com/sluice-go/sluice/internal/spacesaving"
	"github.com/sluice-go/sluice/rules"
)

// shownSides is how many rules, and clients, the result of a trial names.
const shownSides = 20

// onTrial is rules that judge calls beside the rules in force. It is safe for concurrent use.
type onTrial struct {
	live    *live // which names keys
	engine  *rules.Engine
	actions *compiledActions // of the rules on trial
	scratch sync.Pool        // of *rules.Response

	keptOut, letIn *spacesaving.Top // clients

	mutex  sync.Mutex // guards the rest
	result trial.Result
	rules  map[string]*trial.Side
}

// decided is told of each call over gRPC, and to /json, that has been answered.
func (s *server) decided(req *rules.Request, resp *rules.Response) {
	if resp.Code != rules.OK {
		s.live.denied(req, resp)
	}
	if t := s.trial.Load(); t != nil {
		t.judge(req, req, resp)
	}
}

// judgeCheck describes a request to /check by the actions of the rules on trial, and has these judge it. The rules in force were asked
// about other descriptors of it.
func (t *onTrial) judgeCheck(original *http.Request, asked *rules.Request, before *rules.Response) {
	req := rules.Request{Domain: asked.Domain}
	if _, err := t.actions.describer(asked.Domain).Describe(original, &req, nil); err != nil {
		t.mutex.Lock()
		defer t.mutex.Unlock()
		t.result.Calls++
		t.result.Failed++
		return
	}
	t.judge(&req, asked, before)
}

// judge has the rules on trial judge a call. before is the answer of the rules in force, as they were asked.
func (t *onTrial) judge(req, asked *rules.Request, before *rules.Response) {
	after, err := t.scratch.Get().(*rules.Response), error(nil)
	defer t.scratch.Put(after)
	if len(req.Descriptors) == 0 { // such a request to /check passes
		after.Code, after.Statuses, after.WouldDeny = rules.OK, after.Statuses[:0], false
	} else {
		err = t.engine.Decide(req, after)
	}
	was, would := denies(before), err == nil && denies(after)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r := &t.result
	r.Calls++
	if was {
		r.Denied++
	}
	if would {
		r.WouldDeny++
	}
	switch {
	case err != nil:
		r.Failed++
	case would && !was:
		r.KeptOut++
		t.rule(after.DeniedBy()).KeptOut++
		t.client(t.keptOut, t.engine, req, after)
	case was && !would:
		r.LetIn++
		t.rule(before.DeniedBy()).LetIn++
		t.client(t.letIn, t.live.engine, asked, before)
	}
}

// client counts the client of a denial by the rules of an engine.
func (t *onTrial) client(top *spacesaving.Top, engine *rules.Engine, req *rules.Request, denial *rules.Response) {
	if i := denial.Denying(); i >= 0 {
		set, _ := engine.Set()
		top.Count(t.live.keyOf(set, req.Domain, &req.Descriptors[i], denial.Statuses[i].Rule))
	}
}

// denies reports whether a call is denied, or would be without --shadow.
func denies(resp *rules.Response) bool { return resp.Code == rules.OverLimit || resp.WouldDeny }

func (t *onTrial) rule(path string) *trial.Side {
	side := t.rules[path]
	if side == nil {
		side = &trial.Side{Name: path}
		t.rules[path] = side
	}
	return side
}

// results are the calls so far, of a trial that has gone on for a time.
func (t *onTrial) results(took time.Duration) trial.Result {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	out := t.result
	out.Seconds = took.Seconds()
	var all []trial.Side
	for _, s := range t.rules {
		all = append(all, *s)
	}
	out.Rules, out.MoreRules = mostSides(all)
	clients := map[uint64]*trial.Side{}
	sideOf := func(c *spacesaving.Counter) *trial.Side {
		if clients[c.ID] == nil {
			rule, key := nameOf(c)
			clients[c.ID] = &trial.Side{Name: rule + " " + key}
		}
		return clients[c.ID]
	}
	for _, c := range t.keptOut.List() {
		sideOf(&c).KeptOut = c.Count
	}
	for _, c := range t.letIn.List() {
		sideOf(&c).LetIn = c.Count
	}
	all = all[:0]
	for _, s := range clients {
		all = append(all, *s)
	}
	out.Clients, out.MoreClients = mostSides(all)
	return out
}

// mostSides returns the sides with the most calls, and how many others there are.
func mostSides(all []trial.Side) (most []trial.Side, more int) {
	slices.SortFunc(all, func(a, b trial.Side) int {
		return cmp.Or(cmp.Compare(b.KeptOut+b.LetIn, a.KeptOut+a.LetIn), cmp.Compare(a.Name, b.Name))
	})
	n := min(len(all), shownSides)
	return append([]trial.Side{}, all[:n]...), len(all) - n
}

// trialOf has other rules judge calls beside the rules in force, until the time of the order is over, whoever has sent it has gone, or
// the service ends. It changes no answer. One trial goes on at a time.
func (s *server) trialOf(w http.ResponseWriter, r *http.Request) {
	if !s.trying.TryLock() {
		http.Error(w, "rules are on trial already; want one trial after the other", http.StatusConflict)
		return
	}
	defer s.trying.Unlock()
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Now().Add(time.Minute))
	order, err := readOrder(http.MaxBytesReader(w, r.Body, trial.MaxOrder))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The body has been read to its end, so that the request's context tells when the client goes.
	_ = stream.SetReadDeadline(time.Time{})
	length := time.Duration(order.For)
	_ = stream.SetWriteDeadline(time.Now().Add(length + 2*time.Minute))
	t, err := s.newTrial(order)
	if err != nil {
		http.Error(w, "the rules are refused:\n"+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	s.trial.Store(t)
	defer s.trial.Store(nil)
	begun := time.Now()
	over := time.NewTimer(length)
	defer over.Stop()
	select {
	case <-over.C:
	case <-r.Context().Done():
		return
	case <-s.ending:
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(t.results(time.Since(begun)))
}

// readOrder reads an order, and nothing behind it.
func readOrder(body io.Reader) (order trial.Order, err error) {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err = d.Decode(&order); err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more behind it")
		}
	}
	if err != nil {
		return order, fmt.Errorf("the body is no order of a trial: %w; want what sluice check --against sends", err)
	}
	return order, trial.CheckFor(time.Duration(order.For))
}

// newTrial makes a trial, whose counts go on from the counts of the service, unless a store has them.
func (s *server) newTrial(order trial.Order) (*onTrial, error) {
	var files []rules.File
	for _, f := range order.Files {
		files = append(files, rules.File{Name: f.Name, Data: []byte(f.Data)})
	}
	set, err := rules.Load(files, rules.Options{MergeDomains: order.Merge})
	if err != nil {
		return nil, err
	}
	t := &onTrial{
		live: s.live, actions: s.checker.newActions(set), scratch: sync.Pool{New: func() any { return new(rules.Response) }},
		keptOut: spacesaving.New(countedKeys), letIn: spacesaving.New(countedKeys), rules: map[string]*trial.Side{},
	}
	c := s.engineConfig()
	if t.result.Fresh = s.store != nil; t.result.Fresh {
		t.engine, err = rules.New(set, c)
		return t, err
	}
	var counts bytes.Buffer
	if err = s.engine.Snapshot(&counts); err != nil {
		return nil, err
	}
	t.engine, err = rules.Restore(set, c, &counts)
	if err == nil {
		t.result.Anew = t.engine.Unrestored()
	}
	return t, err
}
