package report

import (
	"encoding/json"
	"io"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// The document that JSON writes. Names and meanings are stable: fields may be
// added, but not renamed, removed or put to another use. Times are RFC 3339 in UTC.
type document struct {
	Log   logFacts   `json:"log"`
	Rules []ruleData `json:"rules"` // in the order of the command line
	// Changes is there only with --against.
	Changes *changesData `json:"changes,omitempty"`
}

type logFacts struct {
	Source string `json:"source"` // file name, "standard input" or "sample log"; of several the first ones
	Format string `json:"format"` // of several the names of all
	Lines  int64  `json:"lines"`  // blank + counted + malformed + keyless + outside
	Blank  int64  `json:"blank"`
	// Counted is the number of lines that were replayed, one request each.
	Counted   int64 `json:"counted"`
	Malformed int64 `json:"malformed"`
	// MalformedLines are the numbers of the first few malformed lines, from 1, and
	// MalformedReason is the mistake of the first.
	MalformedLines  []int64 `json:"malformed_lines"`
	MalformedReason string  `json:"malformed_reason,omitempty"`
	// Incomplete says why the log was not read to its end; there only if so.
	Incomplete string `json:"incomplete,omitempty"`
	// Key is the --key that takes the place of the client, and Keyless the readable lines that lack
	// it; there only with one.
	Key     string `json:"key,omitempty"`
	Keyless *int64 `json:"keyless,omitempty"`
	// Outside are the requests before --from or after --to; there only if some are.
	Outside int64 `json:"outside,omitempty"`
	Clients int   `json:"clients"`
	// PrivateClients is true if all clients have private addresses, or none at all: they
	// may be proxies, and budgets shared by all behind them.
	PrivateClients bool   `json:"private_clients"`
	FirstTime      string `json:"first_time"` // earliest time in the log
	LastTime       string `json:"last_time"`  // latest time in the log
	// Late is the number of requests earlier than one before them. They were
	// replayed at the later time. The furthest was LateMaxSeconds behind.
	Late           int64    `json:"late"`
	LateMaxSeconds float64  `json:"late_max_seconds"`
	Timeline       timeline `json:"timeline"`
}

// timeline describes the columns of every over_time: the first starts at Start,
// each is StepNanos wide.
type timeline struct {
	Start     string  `json:"start"`
	StepNanos int64   `json:"step_ns"`
	Requests  []int64 `json:"requests"`
}

type ruleData struct {
	// Rule is algorithm and limit. Of rules in YAML the algorithm is "rules", and the limit is their
	// domain.
	Rule           string  `json:"rule"`
	Algorithm      string  `json:"algorithm"`
	Limit          string  `json:"limit"`
	Allowed        int64   `json:"allowed"`
	Denied         int64   `json:"denied"`
	DeniedShare    float64 `json:"denied_share"` // of the counted lines, 0 to 1
	LimitedClients int     `json:"limited_clients"`
	// FirstDenied is the number of the first denied request among the counted
	// lines, from 1, and FirstDeniedTime the replay's clock then. Null without one.
	FirstDenied     *int64  `json:"first_denied"`
	FirstDeniedTime *string `json:"first_denied_time"`
	// HeaviestDenied is the denials of the five clients that have the most, and LongestStreak the
	// most denials that a client had in a row; null without one.
	HeaviestDenied int64       `json:"heaviest_denied"`
	LongestStreak  *streak     `json:"longest_streak"`
	Top            []topClient `json:"top"` // by denials, ties in byte order
	DeniedOverTime []int64     `json:"denied_over_time"`
	// DecisionsSHA256 is the SHA-256 of a string with one letter for each counted
	// line, A if it was allowed and D if it was denied.
	DecisionsSHA256 string `json:"decisions_sha256"`
	// Limits are the limits of rules in YAML that a request has met, by path; there only for such rules.
	Limits []limitData `json:"limits,omitempty"`
	// Undescribed counts the requests that no descriptor could be made of, which were allowed, and
	// Refused those with a value that no descriptor can have, such as a header that is there twice,
	// which were denied; there only for rules in YAML.
	Undescribed int64 `json:"undescribed,omitempty"`
	Refused     int64 `json:"refused,omitempty"`
}

// limitData counts hits: each descriptor of a request is one for the limit that fits it.
type limitData struct {
	Rule string `json:"rule"` // its path: domain, keys and values
	Hits int64  `json:"hits"`
	Near int64  `json:"near"` // above 80% of the limit, and up to it
	Over int64  `json:"over"` // above it
}

type streak struct {
	Client string `json:"client"`
	Denied int64  `json:"denied"`
}

type topClient struct {
	Client   string `json:"client"`
	Requests int64  `json:"requests"`
	Denied   int64  `json:"denied"`
}

// JSON writes the report as one JSON object. It is ASCII; bytes of a client name
// that are not UTF-8 are replaced by U+FFFD.
func JSON(w io.Writer, rep Report) error {
	doc := document{Log: newLogFacts(rep), Rules: []ruleData{}}
	for i, r := range rep.Result.Rules {
		doc.Rules = append(doc.Rules, newRuleData(i, r, rep.Result.Requests))
	}
	if rep.Result.Changes != nil {
		doc.Changes = newChangesData(rep.Result)
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(asciiJSON(text), '\n'))
	return err
}

func newLogFacts(rep Report) logFacts {
	f, res := rep.Log, rep.Result
	var keyless *int64
	if rep.Key != "" {
		keyless = &f.Keyless
	}
	return logFacts{
		Key:             rep.Key,
		Keyless:         keyless,
		Outside:         f.Outside,
		Source:          rep.Source,
		Format:          f.Format,
		Lines:           f.Lines,
		Blank:           f.Blank,
		Counted:         f.Counted,
		Malformed:       f.Malformed,
		MalformedLines:  append([]int64{}, f.MalformedLines...),
		MalformedReason: f.MalformedReason,
		Incomplete:      rep.Incomplete,
		Clients:         res.Clients,
		PrivateClients:  res.Private,
		FirstTime:       timeText(res.First),
		LastTime:        timeText(res.Last),
		Late:            res.Late,
		LateMaxSeconds:  res.MaxLate.Seconds(),
		Timeline:        timeline{timeText(res.Start), int64(res.Width), res.OverTime},
	}
}

func newRuleData(i int, r replay.RuleResult, requests int64) ruleData {
	data := ruleData{
		Rule:            r.Rule.String(),
		Algorithm:       r.Rule.AlgorithmText(),
		Limit:           r.Rule.LimitText(),
		Allowed:         r.Allowed,
		Denied:          r.Denied,
		DeniedShare:     float64(r.Denied) / float64(requests),
		LimitedClients:  r.LimitedClients,
		HeaviestDenied:  r.HeaviestDenied,
		Top:             []topClient{},
		DeniedOverTime:  r.OverTime,
		DecisionsSHA256: r.DecisionsSHA256,
	}
	if first := r.FirstDenied; first != nil {
		at := timeText(first.Time)
		data.FirstDenied, data.FirstDeniedTime = &first.Request, &at
	}
	if s := r.LongestStreak; s != nil {
		data.LongestStreak = &streak{s.Client, s.Denied}
	}
	for _, c := range r.Top {
		data.Top = append(data.Top, topClient{c.Name, c.Requests, c.Denied[i]})
	}
	data.Undescribed, data.Refused = r.Undescribed, r.Refused
	for _, l := range r.Limits {
		data.Limits = append(data.Limits, limitData{l.Path, l.Hits, l.Near, l.Over})
	}
	return data
}

func timeText(nanos int64) string {
	return time.Unix(0, nanos).UTC().Format(time.RFC3339Nano)
}
