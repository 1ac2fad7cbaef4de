package countertest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/rules"
)

// script is a text of Replay.
type script struct {
	sets         [][]rule
	stop, shadow bool
	exact        bool // only for counts whose time is exact
	calls        []call
}

// rule is a rule of a script. Domains d and a have it.
type rule struct {
	key, value, unit, algorithm, name, then     string
	requests                                    int64
	debt                                        int64 // -1 for none given
	shadow, quota, share, admitted, isUnlimited bool
	calendar                                    bool // windows are a calendar's, in zone
	weights                                     map[string]int64
	text                                        string
}

// call is a line of a script.
type call struct {
	text, op, id, domain, step, series string
	process, set                       int
	descriptors                        []descriptor
	back                               bool
	ttl                                time.Duration // of a hold, or that passes
	want                               string        // the outcome that the text gives, or ""
}

type descriptor struct {
	entries  []rules.Entry
	hits     uint64
	counted  bool // entries behind the first are counts for weights, and stand in place of hits
	refund   bool
	override *rules.Override
}

var algorithms = []string{"fixed-window", "gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log", "in-flight"}

func parse(text string) (*script, error) {
	s := &script{sets: make([][]rule, 1)}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var err error
		switch words[0] {
		case "rule":
			var r rule
			r, err = parseRule(words[1:])
			last := len(s.sets) - 1
			s.sets[last] = append(s.sets[last], r)
		case "set":
			s.sets = append(s.sets, nil)
		case "stop":
			s.stop = true
		case "shadow":
			s.shadow = true
		case "exact":
			s.exact = true
		default:
			var c call
			c, err = parseCall(line)
			s.calls = append(s.calls, c)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return s, nil
}

// read is parse, with the common rules for a text without rules.
func read(text string) (*script, error) {
	s, err := parse(text)
	if err == nil && len(s.sets[0]) == 0 {
		s.sets = commonSets
	}
	return s, err
}

func parseRule(words []string) (r rule, err error) {
	if len(words) < 3 {
		return r, errors.New("want rule KEY[=VALUE] UNIT REQUESTS")
	}
	r = rule{unit: words[1], debt: -1, text: "rule " + strings.Join(words, " ")}
	r.key, r.value, _ = strings.Cut(words[0], "=")
	if r.requests, err = strconv.ParseInt(words[2], 10, 64); err != nil {
		return r, err
	}
	flags := map[string]*bool{"shadow": &r.shadow, "quota": &r.quota, "share": &r.share, "admitted": &r.admitted, "unlimited": &r.isUnlimited, "calendar": &r.calendar}
	for _, word := range words[3:] {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case slices.Contains(algorithms, word):
			r.algorithm = word
		case flags[word] != nil:
			*flags[word] = true
		case name == "name":
			r.name = value
		case name == "then":
			r.then = value
		case name == "debt":
			r.debt, err = strconv.ParseInt(value, 10, 64)
		case name == "weights":
			r.weights = map[string]int64{}
			for _, w := range strings.Split(value, "+") {
				key, times, _ := strings.Cut(w, "*")
				r.weights[key], err = strconv.ParseInt(times, 10, 64)
			}
		default:
			err = fmt.Errorf("%q is no word for a rule", word)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func parseCall(line string) (c call, err error) {
	made, want, _ := strings.Cut(line, " -> ")
	c = call{text: strings.TrimSpace(made), want: strings.TrimSpace(want), ttl: time.Hour, domain: "d"}
	words := strings.Fields(made)
	if at, ok := strings.CutPrefix(words[0], "@"); ok {
		if c.process, err = strconv.Atoi(at); err != nil {
			return c, err
		}
		words = words[1:]
	}
	if len(words) < 2 {
		return c, errors.New("want an operation and its words")
	}
	c.op, words = words[0], words[1:]
	switch c.op {
	case "hold", "extend", "settle", "release":
		c.id, words = words[0], words[1:]
		if len(words) == 0 {
			return c, errors.New("want descriptors")
		}
	case "reload":
		c.set, err = strconv.Atoi(words[0])
		return c, err
	case "pass":
		c.ttl, err = time.ParseDuration(words[0])
		return c, err
	case "series":
		c.series = words[0]
		return c, nil
	case "take", "reset":
	default:
		return c, fmt.Errorf("%q is no operation", c.op)
	}
	if err := c.describe(words[0]); err != nil {
		return c, err
	}
	for _, word := range words[1:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "back":
			c.back = true
		case "step":
			c.step = value
		case "ttl":
			c.ttl, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("%q is no option", word)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// describe reads the descriptors.
func (c *call) describe(text string) error {
	if domain, rest, ok := strings.Cut(text, "/"); ok && len(domain) == 1 {
		c.domain, text = domain, rest
	}
	for _, one := range strings.Split(text, ",") {
		var d descriptor
		one, number, _ := strings.Cut(one, ":")
		number, d.refund = strings.CutPrefix(number, "-")
		entries, override, ok := strings.Cut(one, "@")
		if ok {
			requests, unit, _ := strings.Cut(override, "/")
			n, err := strconv.ParseUint(requests, 10, 32)
			if err != nil {
				return err
			}
			d.override = &rules.Override{Requests: uint32(n), Unit: unitOf(unit)}
		}
		for _, e := range strings.Split(entries, "+") {
			key, value, _ := strings.Cut(e, "=")
			d.entries = append(d.entries, rules.Entry{Key: key, Value: value})
		}
		var err error
		if d.hits, err = strconv.ParseUint("0"+number, 10, 64); err != nil {
			return err
		}
		d.counted = len(d.entries) > 1
		c.descriptors = append(c.descriptors, d)
	}
	return nil
}

func unitOf(text string) rules.Unit {
	for _, u := range []rules.Unit{rules.Second, rules.Minute, rules.Hour, rules.Day, rules.Week, rules.Month, rules.Year} {
		if strings.EqualFold(u.String(), text) {
			return u
		}
	}
	return rules.UnknownUnit
}

// String is the text, without outcomes, and without the common rules.
func (s *script) String() string {
	var b strings.Builder
	for i, set := range s.sets {
		if &s.sets[0] == &commonSets[0] {
			break
		}
		if i > 0 {
			b.WriteString("set\n")
		}
		for _, r := range set {
			b.WriteString(r.text + "\n")
		}
	}
	if s.stop {
		b.WriteString("stop\n")
	}
	if s.shadow {
		b.WriteString("shadow\n")
	}
	for _, c := range s.calls {
		b.WriteString(c.text + "\n")
	}
	return b.String()
}

// load makes a set of rules of each list.
func (s *script) load() (out []*rules.Set, err error) {
	for _, list := range s.sets {
		text := ""
		for _, r := range list {
			text += r.yaml()
		}
		var files []rules.File
		for _, domain := range []string{"domain: d\ndescriptors:\n", "domain: a\nsluice: {atomic: true}\ndescriptors:\n"} {
			files = append(files, rules.File{Name: domain[8:9], Data: []byte(domain + text)})
		}
		set, err := rules.Load(files, rules.Options{})
		if err != nil {
			return nil, err
		}
		out = append(out, set)
	}
	return out, nil
}

// yaml is the rule as a file has it.
func (r *rule) yaml() string {
	out := fmt.Sprintf("- {key: %s, value: %q, shadow_mode: %t, quota_mode: %t, share_threshold: %t, rate_limit: {", r.key, r.value, r.shadow, r.quota, r.share)
	if r.isUnlimited {
		return out + "unlimited: true}}\n"
	}
	if r.calendar {
		out += fmt.Sprintf("calendar: {unit: %s, zone: %s}", r.unit, zone)
	} else {
		out += "unit: " + r.unit
	}
	out += fmt.Sprintf(", requests_per_unit: %d", r.requests)
	for name, value := range map[string]string{"algorithm": r.algorithm, "name": r.name, "then": r.then} {
		if value != "" {
			out += ", " + name + ": " + value
		}
	}
	if r.admitted {
		out += ", count_denied: false"
	}
	if r.debt >= 0 {
		out += fmt.Sprintf(", max_debt: %d", r.debt)
	}
	if r.weights != nil {
		var weights []string
		for key, n := range r.weights {
			weights = append(weights, fmt.Sprintf("%s: %d", key, n))
		}
		out += ", weights: {" + strings.Join(weights, ", ") + "}"
	}
	return out + "}}\n"
}

// missing returns the first call that needs an operation that the counts do not have, and why; or -1.
func (s *script) missing(c Counts) (at int, why error) {
	if len(c.Without) == 0 {
		return -1, nil
	}
	clock := time.Now()
	m := newModel(s, func() time.Time { return clock })
	for i := range s.calls {
		call := &s.calls[i]
		if m.call(call); call.op == "pass" {
			clock = clock.Add(call.ttl)
		}
		for operation := range m.needs {
			if why := c.Without[operation]; why != nil {
				return i, why
			}
		}
	}
	return -1, nil
}

// with leaves out the calls that need an operation that the counts do not have.
func (s *script) with(c Counts) *script {
	for {
		at, _ := s.missing(c)
		if at < 0 {
			return s
		}
		s.calls = slices.Delete(s.calls, at, at+1)
	}
}

// find returns the rule for a descriptor, or nil: a value goes before a pattern, and a pattern before none.
func find(set []rule, d *descriptor) *rule {
	if d.override != nil {
		return nil
	}
	best := (*rule)(nil)
	for i := range set {
		r := &set[i]
		prefix, pattern := strings.CutSuffix(r.value, "*")
		fits := r.value == "" || r.value == d.entries[0].Value || pattern && strings.HasPrefix(d.entries[0].Value, prefix)
		if r.key == d.entries[0].Key && fits && (len(d.entries) == 1 || r.weights != nil) && (best == nil || r.rank() > best.rank()) {
			best = r
		}
	}
	return best
}

func (r *rule) rank() int {
	switch {
	case r.value == "":
		return 0
	case strings.HasSuffix(r.value, "*"):
		return 1
	}
	return 2
}

// holds reports whether there are calls about holds.
func (s *script) holds() bool {
	return slices.ContainsFunc(s.calls, func(c call) bool { return c.op == "hold" })
}

// mustRules reads rules.
func mustRules(text string) (out [][]rule) {
	s, err := parse(text)
	if err != nil {
		panic(err)
	}
	return s.sets
}
