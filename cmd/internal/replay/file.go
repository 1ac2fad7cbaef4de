package replay

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/original"
	"github.com/sluice-go/sluice/rules"
	"github.com/sluice-go/sluice/rules/httprules"
)

// A File is rules in YAML, and the descriptors that they are asked for each request.
type File struct {
	Set    *rules.Set
	Domain string // of the rules that count
	// Descriptors describe a request. Without them the domain's actions do, "http" in its files, and where
	// it has none, the client as remote_address.
	Descriptors []Descriptor
	Against     bool // see Rule
}

// A Descriptor is the entries that a request is described by.
type Descriptor []entry

// entry is a key, and a value that is put together for each request.
type entry struct {
	key   string
	parts []part
}

// part is text, or a placeholder for a value of the request.
type part struct {
	text  string
	value func(*asked) string
}

// asked is a request as rules see it.
type asked struct {
	*http.Request
	client string
	log    *accesslog.Request
}

type placeholder struct {
	name  string
	value func(*asked) string
}

// placeholders stand for values of a request, in a Descriptor.
var placeholders = []placeholder{
	{"client", func(a *asked) string { return a.client }},
	{"method", func(a *asked) string { return a.Method }},
	{"path", func(a *asked) string { return a.URL.Path }},
	{"host", func(a *asked) string { return a.Host }},
	{"user", func(a *asked) string { return a.log.User }},
	{"agent", func(a *asked) string { return a.UserAgent() }},
	{"status", func(a *asked) string { return a.log.Status }},
}

// Placeholders names the placeholders of a Descriptor.
func Placeholders() string {
	names := make([]string, len(placeholders))
	for i, p := range placeholders {
		names[i] = "{" + p.name + "}"
	}
	return strings.Join(names, ", ")
}

// ParseDescriptor reads entries such as "path=/login,remote_address={client}".
func ParseDescriptor(s string) (Descriptor, error) {
	var d Descriptor
	for text := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(text, "=")
		if key == "" {
			return nil, fmt.Errorf("descriptor %q: want entries KEY=VALUE with commas between; %s stand for what a request has", s, Placeholders())
		}
		parts, err := parseValue(value)
		if err != nil {
			return nil, fmt.Errorf("descriptor %q: %w", s, err)
		}
		d = append(d, entry{key, parts})
	}
	return d, nil
}

// parseValue cuts a value up at its placeholders.
func parseValue(value string) (parts []part, err error) {
	for {
		before, rest, _ := strings.Cut(value, "{")
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return append(parts, part{text: value}), nil
		}
		i := slices.IndexFunc(placeholders, func(p placeholder) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("{%s} stands for nothing; want one of %s", name, Placeholders())
		}
		parts = append(parts, part{text: before}, part{value: placeholders[i].value})
		value = after
	}
}

// LimitResult has the numbers of one limit of a File. Numbers are hits: each descriptor of a request is
// one for the limit that fits it.
type LimitResult struct {
	Path       string // of the rule: domain, keys and values
	Hits       int64
	Near, Over int64 // above 80% of the limit and up to it; above it
}

// AddFile makes rules of a file another rule of the replay. Requests are decided as the rate limit
// service decides them, without a bound on keys but the file's. It must come before the
// first request.
func (r *Replay) AddFile(f File) error {
	engine, err := rules.New(f.Set, rules.Config{Clock: r.clock, MaxKeys: -1})
	if err != nil {
		return err
	}
	state := &fileState{File: f, engine: engine, req: rules.Request{Domain: f.Domain}}
	if len(f.Descriptors) == 0 {
		state.describer = httprules.NewDescriber(f.Set.Actions(f.Domain), func(*http.Request) (string, error) { return state.asked.client, nil })
	}
	r.rules = append(r.rules, &ruleState{rule: Rule{Domain: f.Domain, Against: f.Against}, file: state, decisions: sha256.New()})
	return nil
}

// fileState is a File in the course of a replay.
type fileState struct {
	File
	engine    *rules.Engine
	describer *httprules.Describer // nil with Descriptors
	asked     asked
	entries   []rules.Entry
	req       rules.Request
	resp      rules.Response

	undescribed int64 // requests without a descriptor
	refused     int64 // requests with values that no action can use
}

// allow decides a request at the time at which the replay's clock stands.
func (s *fileState) allow(client string, log *accesslog.Request) bool {
	s.asked = asked{original.Request(log.Method, log.Host, log.Target, log.Header), client, log}
	if err := s.describe(); err != nil {
		s.refused++
		return false
	}
	if len(s.req.Descriptors) == 0 {
		s.undescribed++
		return true
	}
	// It has a domain and descriptors, and no overrides: nothing to refuse.
	if err := s.engine.Decide(&s.req, &s.resp); err != nil {
		panic(err)
	}
	return s.resp.Code == rules.OK
}

// describe makes the descriptors of a request. A descriptor without a value for an entry is left out.
func (s *fileState) describe() (err error) {
	if s.describer != nil {
		s.entries, err = s.describer.Describe(s.asked.Request, &s.req, s.entries[:0])
		return err
	}
	s.entries, s.req.Descriptors = s.entries[:0], s.req.Descriptors[:0]
	for _, d := range s.Descriptors {
		first, whole := len(s.entries), true
		for _, e := range d {
			value, ok := e.value(&s.asked)
			whole = whole && ok
			s.entries = append(s.entries, rules.Entry{Key: e.key, Value: value})
		}
		if whole {
			s.req.Descriptors = append(s.req.Descriptors, rules.Descriptor{Entries: s.entries[first:len(s.entries):len(s.entries)]})
		}
	}
	return nil
}

// value puts a value together; false if the request lacks a part of it.
func (e *entry) value(a *asked) (string, bool) {
	var b strings.Builder
	for _, p := range e.parts {
		if p.value == nil {
			b.WriteString(p.text)
			continue
		}
		v := p.value(a)
		if v == "" {
			return "", false
		}
		b.WriteString(v)
	}
	return b.String(), true
}

// limits are the results of limits that have counted anything.
func (s *fileState) limits() []LimitResult {
	var out []LimitResult
	for _, line := range s.engine.Series() {
		if n := line.Total + line.Unlimited; n > 0 {
			out = append(out, LimitResult{line.Path, int64(n), int64(line.Near), int64(line.Over)})
		}
	}
	return out
}
