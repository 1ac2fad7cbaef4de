package replay

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/sluice-go/sluice/rules"
)

// A File is rules in YAML, and what they are asked about each request.
type File struct {
	Set         *rules.Set
	Domain      string // of the rules that count
	Descriptors []Descriptor
}

// A Descriptor is the entries that a request is described by. In a value, Placeholder stands for
// the client.
type Descriptor []rules.Entry

// Placeholder stands for the name of the client.
const Placeholder = "{client}"

// DefaultDescriptor is what Envoy's action remote_address makes of a request.
var DefaultDescriptor = Descriptor{{Key: "remote_address", Value: Placeholder}}

// ParseDescriptor reads entries such as "path=/login,remote_address={client}".
func ParseDescriptor(s string) (Descriptor, error) {
	var d Descriptor
	for part := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(part, "=")
		if key == "" {
			return nil, fmt.Errorf("descriptor %q: want entries KEY=VALUE with commas between, %s for the client", s, Placeholder)
		}
		d = append(d, rules.Entry{Key: key, Value: value})
	}
	return d, nil
}

// LimitResult is what one limit of a File did. Numbers are hits: each descriptor of a request is
// one for the limit that fits it.
type LimitResult struct {
	Path       string // of the rule: domain, keys and values
	Hits       int64
	Near, Over int64 // above 80% of the limit and up to it; above it
}

// AddFile makes rules of a file another rule of the replay. Requests are decided as the rate limit
// service decides them, without a bound on keys but those of the file. It must come before the
// first request.
func (r *Replay) AddFile(f File) error {
	engine, err := rules.New(f.Set, rules.Config{Clock: r.clock, MaxKeys: -1})
	if err != nil {
		return err
	}
	state := &fileState{File: f, engine: engine}
	state.req = rules.Request{Domain: f.Domain, Descriptors: make([]rules.Descriptor, len(f.Descriptors))}
	for i, d := range f.Descriptors {
		state.req.Descriptors[i].Entries = make([]rules.Entry, len(d))
	}
	r.rules = append(r.rules, &ruleState{rule: Rule{Domain: f.Domain}, file: state, decisions: sha256.New()})
	return nil
}

// fileState is a File in the course of a replay.
type fileState struct {
	File
	engine *rules.Engine
	req    rules.Request
	resp   rules.Response
}

// allow decides a request at the time at which the replay's clock stands.
func (s *fileState) allow(client string) bool {
	for i, d := range s.Descriptors {
		for j, e := range d {
			e.Value = strings.ReplaceAll(e.Value, Placeholder, client)
			s.req.Descriptors[i].Entries[j] = e
		}
	}
	// It has a domain and descriptors, and no overrides: nothing to refuse.
	if err := s.engine.Decide(&s.req, &s.resp); err != nil {
		panic(err)
	}
	return s.resp.Code == rules.OK
}

// limits is what the limits did that have counted anything.
func (s *fileState) limits() []LimitResult {
	if s == nil {
		return nil
	}
	var out []LimitResult
	for _, line := range s.engine.Series() {
		if line.Total > 0 {
			out = append(out, LimitResult{line.Path, int64(line.Total), int64(line.Near), int64(line.Over)})
		}
	}
	return out
}
