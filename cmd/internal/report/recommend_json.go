package report

import (
	"encoding/json"
	"io"

	"github.com/sluice-go/sluice/cmd/internal/recommend"
)

// The document that RecommendJSON writes. What is said of document holds for it.
type recommendation struct {
	Log logFacts `json:"log"`
	// Clients is the share of clients that a limit is to deny nothing, in percent, as in "99.9%", and
	// MaxDenied how many of the log may be denied something.
	Clients   string            `json:"clients"`
	MaxDenied int               `json:"max_denied_clients"`
	PerNanos  int64             `json:"per_ns"` // of --per
	Peaks     []peakData        `json:"peaks"`
	Frontier  frontierData      `json:"frontier"`
	Limits    []choiceData      `json:"recommended"` // in the order of the command line
	Text      map[string]string `json:"rules"`       // by the name of --output
	Check     *checkData        `json:"check,omitempty"`
	Gate      *gateData         `json:"gate,omitempty"`
}

// peakData is the most requests that clients have had in any time of a length.
type peakData struct {
	SpanNanos int64  `json:"span_ns"`
	P50       int64  `json:"p50"`
	P90       int64  `json:"p90"`
	P99       int64  `json:"p99"`
	P999      int64  `json:"p99_9"`
	Max       int64  `json:"max"`
	Client    string `json:"client"` // that has had the max
}

// frontierData has the smallest burst of gcra for each rate and each number of denied clients.
type frontierData struct {
	Shares []string    `json:"shares"`         // of clients that may be denied something
	Denied []int       `json:"denied_clients"` // so many they are
	Points []pointData `json:"points"`
}

type pointData struct {
	Rate   string   `json:"rate"`
	Bursts []*int64 `json:"bursts"` // null if a limiter takes none that is enough
}

type choiceData struct {
	Rule string `json:"rule"`
	// Refused says why there is no such limit; then the rest is missing.
	Refused string `json:"refused,omitempty"`
	// InAnyPer is the most that a client is admitted in any --per.
	InAnyPer int       `json:"in_any_per,omitempty"`
	Evidence *ruleData `json:"evidence,omitempty"`
}

// checkData is the second log under the limits that are not refused.
type checkData struct {
	Log       logFacts   `json:"log"`
	MaxDenied int        `json:"max_denied_clients"`
	Holds     []bool     `json:"holds"` // by rule
	Rules     []ruleData `json:"rules"`
}

type gateData struct {
	Most    string   `json:"max_denied_clients"`
	Denied  int      `json:"denied_clients"` // so many they are
	Exceeds []string `json:"exceeded_by"`    // rules
}

// RecommendJSON writes a recommendation as one JSON object, in ASCII as JSON does.
func RecommendJSON(w io.Writer, rep Recommendation) error {
	found := rep.Found
	doc := recommendation{
		Log: newLogFacts(rep.Report), Clients: found.Denied.Rest().String(), MaxDenied: found.DeniedClients, PerNanos: int64(found.Per),
		Frontier: newFrontierData(found), Text: map[string]string{},
	}
	for _, p := range found.Peaks {
		doc.Peaks = append(doc.Peaks, peakData{int64(p.Span), p.P50, p.P90, p.P99, p.P999, p.Most, p.Client})
	}
	rules := found.Evidence.Rules
	for _, c := range found.Choices {
		data := choiceData{Rule: c.Rule.String(), Refused: c.Refused, InAnyPer: c.Most}
		if c.Refused == "" {
			evidence := newRuleData(len(found.Evidence.Rules)-len(rules), rules[0], found.Evidence.Requests)
			data.Evidence, rules = &evidence, rules[1:]
		}
		doc.Limits = append(doc.Limits, data)
	}
	for _, target := range rep.Found.TargetsFor() {
		doc.Text[target.Name] = target.Write(found)
	}
	if rep.Check != nil {
		doc.Check = newCheckData(rep)
	}
	if g := rep.Gate; g != nil {
		doc.Gate = &gateData{Most: g.Most, Denied: g.Denied, Exceeds: []string{}}
		for _, rule := range g.Exceeds {
			doc.Gate.Exceeds = append(doc.Gate.Exceeds, rule.String())
		}
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(asciiJSON(text), '\n'))
	return err
}

func newFrontierData(found recommend.Result) (data frontierData) {
	for _, c := range found.Columns {
		data.Shares = append(data.Shares, c.Share.String())
		data.Denied = append(data.Denied, c.Denied)
	}
	for _, p := range found.Frontier {
		point := pointData{Rate: p.Rate.String()}
		for _, burst := range p.Bursts {
			if burst == 0 {
				point.Bursts = append(point.Bursts, nil)
			} else {
				point.Bursts = append(point.Bursts, &burst)
			}
		}
		data.Points = append(data.Points, point)
	}
	return data
}

func newCheckData(rep Recommendation) *checkData {
	res := rep.Check.Result
	data := &checkData{Log: newLogFacts(*rep.Check), MaxDenied: rep.Found.Denied.Of(res.Clients)}
	for i, r := range res.Rules {
		data.Holds = append(data.Holds, r.LimitedClients <= data.MaxDenied)
		data.Rules = append(data.Rules, newRuleData(i, r, res.Requests))
	}
	return data
}
