package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/cmd/internal/page"
	"github.com/sluice-go/sluice/cmd/internal/recommend"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// HTML writes the report of a replay as a page. command is the command that made it.
func HTML(w io.Writer, rep Report, command string) error {
	p := page.Page{Title: "What limits would have denied", Command: command, Facts: facts(rep)}
	p.Sections = append(p.Sections, overTime(rep.Result), rulesTable("Rules", rep.Result))
	if c := rep.Result.Changes; c != nil {
		p.Sections = append(p.Sections, changesSections(rep.Result)...)
	}
	for i, r := range rep.Result.Rules {
		if len(r.Limits) > 0 {
			p.Sections = append(p.Sections, limitsTable(i, r))
		}
	}
	p.Sections = append(p.Sections, topTable(rep.Result)...)
	return page.Write(w, p)
}

// RecommendHTML writes a recommendation as a page.
func RecommendHTML(w io.Writer, rep Recommendation, command string) error {
	found := rep.Found
	p := page.Page{Title: "Which limit to set", Command: command, Facts: facts(rep.Report)}
	p.Sections = append(p.Sections, choicesTable(found), frontier(found), peaksChart(found), peaksTable(found), overTime(rep.Result))
	p.Sections = append(p.Sections, topTable(rep.Result)...)
	if rep.Check != nil {
		check := rulesTable("The same limits on "+message.OneLine(rep.Check.Source), rep.Check.Result)
		check.About = fmt.Sprintf("At most %d of its %d clients are the goal.", found.Denied.Of(rep.Check.Result.Clients), rep.Check.Result.Clients)
		p.Sections = append(p.Sections, check)
	}
	rules := page.Section{Title: "The rule"}
	if len(found.Key) == 0 {
		rules.About = "nginx does not count the request that comes first, and HAProxy has no burst, so each has a number of its own."
	}
	for _, target := range found.TargetsFor() {
		rules.Texts = append(rules.Texts, page.Text{Title: target.Title, Text: target.Write(found)})
	}
	p.Sections = append(p.Sections, rules)
	return page.Write(w, p)
}

// CompareHTML writes a comparison as a page.
func CompareHTML(w io.Writer, rep Comparison, command string) error {
	found := rep.Found
	p := page.Page{Title: "Algorithms under " + found.Limit.String(), Command: command}
	if rep.Log.Format != "" {
		p.Facts = facts(rep.Report)
	} else {
		p.Facts = []string{message.OneLine(rep.Source) + rep.Note, message.Count(found.Replay.Requests, "request") + " of " + message.Count(found.Replay.Clients, "key"), newClock(found.Replay).span(found.Replay)}
	}
	p.Sections = []page.Section{cumulative(found.Replay, found.Line), comparedTable(rep), overTime(found.Replay)}
	return page.Write(w, p)
}

// columnsOf are the beginnings of a result's columns, in seconds since 1970.
func columnsOf(res replay.Result) (seconds []float64) {
	for i := range res.OverTime {
		seconds = append(seconds, float64(res.Start)/1e9+float64(i)*res.Width.Seconds())
	}
	return seconds
}

func series[T int64 | float64](name string, values []T) page.Series {
	s := page.Series{Name: name}
	for _, v := range values {
		f := float64(v)
		s.Values = append(s.Values, &f)
	}
	return s
}

func overTime(res replay.Result) page.Section {
	width := widthText(res.Width)
	c := &page.Chart{X: page.Axis{Label: "time (UTC)", Time: true}, Y: page.Axis{Label: "requests in " + width}, Values: columnsOf(res), Steps: res.Width.Seconds()}
	c.Series = append(c.Series, series("asked for", res.OverTime))
	same := distinctRules(res)
	for i, r := range res.Rules {
		if first := slices.Index(same, same[i]); first == i {
			c.Series = append(c.Series, series("denied by "+namesOf(res, same, i), r.OverTime))
		}
	}
	return page.Section{Title: "Requests and denials over time", About: "Each step is " + width + " long.", Chart: c}
}

// distinctRules tells rules that have decided alike by the same text.
func distinctRules(res replay.Result) (out []string) {
	for _, r := range res.Rules {
		out = append(out, r.DecisionsSHA256)
	}
	return out
}

// namesOf names a rule, and those that have decided like it.
func namesOf(res replay.Result, same []string, i int) string {
	text := plain(res.Rules[i].Rule.String())
	for j := i + 1; j < len(same); j++ {
		if same[j] == same[i] {
			text += ", " + plain(res.Rules[j].Rule.AlgorithmText())
		}
	}
	return text
}

func rulesTable(title string, res replay.Result) page.Section {
	t := &page.Table{Header: []string{"rule", "allowed", "denied", "share", "clients denied", "longest streak", "top 5 of denials"}}
	for _, r := range res.Rules {
		d := deniedCells(r, res)
		t.Rows = append(t.Rows, []string{plain(r.Rule.String()), count(r.Allowed), d[1], d[2], d[0], d[3], d[4]})
	}
	return page.Section{Title: title, Table: t}
}

func limitsTable(i int, r replay.RuleResult) page.Section {
	t := &page.Table{Header: []string{"limit", "hits", "near", "over", "share"}}
	for _, l := range r.Limits {
		t.Rows = append(t.Rows, []string{plain(l.Path), count(l.Hits), count(l.Near), count(l.Over), share(l.Over, l.Hits)})
	}
	return page.Section{Title: fmt.Sprintf("Limits of %s", plain(r.Rule.String())), Table: t}
}

func topTable(res replay.Result) []page.Section {
	clients := topOfAny(res.Rules)
	if len(clients) == 0 {
		return nil
	}
	t := &page.Table{Header: []string{"client", "requests"}}
	for _, r := range res.Rules {
		t.Header = append(t.Header, plain(r.Rule.String()))
	}
	for _, c := range clients {
		row := []string{plain(c.Name), count(c.Requests)}
		for _, n := range c.Denied {
			row = append(row, count(n))
		}
		t.Rows = append(t.Rows, row)
		if c.OverTime != nil {
			t.Sparks = append(t.Sparks, page.Spark{Of: "denials of " + plain(c.Name), Values: c.OverTime})
		}
	}
	return []page.Section{{Title: "Clients with the most denials", Table: t}}
}

func changesSections(res replay.Result) []page.Section {
	c := res.Changes
	chart := &page.Chart{X: page.Axis{Label: "time (UTC)", Time: true}, Y: page.Axis{Label: "requests in " + widthText(res.Width)}, Values: columnsOf(res), Steps: res.Width.Seconds(),
		Series: []page.Series{series("kept out: allowed before, denied after", c.KeptOutOverTime), series("let in: denied before, allowed after", c.LetInOverTime)}}
	about := fmt.Sprintf("%d requests of %d clients kept out, %d of %d let in; %d clients denied something for the first time, %d nothing any more.",
		c.KeptOut, c.KeptOutClients, c.LetIn, c.LetInClients, c.NewlyLimited, c.NoLongerLimited)
	t := &page.Table{Header: []string{"client", "from", "to", "requests", "denied before", "denied after", "kept out", "let in"}, Left: 2}
	clock := newClock(res)
	for _, p := range c.Top {
		t.Rows = append(t.Rows, []string{plain(p.Name), clock.text(p.First), clock.text(p.Last), count(p.Requests), count(p.OldDenied), count(p.NewDenied), count(p.KeptOut), count(p.LetIn)})
	}
	return []page.Section{{Title: "What changes", About: about, Chart: chart}, {Title: "Clients with the most changes", Table: t}}
}

func choicesTable(found recommend.Result) page.Section {
	s := rulesTable(fmt.Sprintf("Limits that deny nothing to %v of clients", found.Denied.Rest()), found.Evidence)
	s.About = fmt.Sprintf("At most %d of %d clients are denied something. With one unit less at once it would be more. Few clients with long streaks, and most denials with five of them, are robots; many with short ones are everybody.", found.DeniedClients, found.Evidence.Clients)
	s.Table.Header = slices.Insert(s.Table.Header, 1, "most in any "+widthText(found.Per))
	rows := s.Table.Rows
	for _, c := range found.Choices {
		if c.Refused == "" {
			rows[0], rows = slices.Insert(rows[0], 1, strconv.Itoa(c.Most)), rows[1:]
		}
	}
	return s
}

func frontier(found recommend.Result) page.Section {
	c := &page.Chart{X: page.Axis{Label: "rate (requests a minute)", Log: true}, Y: page.Axis{Label: "smallest burst (requests)", Log: true}}
	for _, p := range found.Frontier {
		c.Values = append(c.Values, perMinute(p.Rate))
	}
	for i, column := range found.Columns {
		name := "denies something to " + columnText(column)
		if column.Share != 0 {
			name = fmt.Sprintf("to %v of clients (%d)", column.Share, column.Denied)
		}
		s := page.Series{Name: name}
		for _, p := range found.Frontier {
			var value *float64
			if burst := float64(p.Bursts[i]); burst > 0 {
				value = &burst
			}
			s.Values = append(s.Values, value)
		}
		c.Series = append(c.Series, s)
	}
	return page.Section{Title: "What burst a rate needs", Chart: c,
		About: "On or above a line, a limit of gcra, token-bucket or leaky-bucket denies something to so many clients at most. Recommended: " + found.Bucket.String() + "."}
}

func perMinute(rate sluice.Limit) float64 {
	return float64(rate.Rate) * float64(time.Minute) / float64(rate.Period)
}

func peaksTable(found recommend.Result) page.Section {
	t := &page.Table{Header: []string{"in any", "client with the most", "median client", "90%", "99%", "99.9%", "most"}, Left: 1}
	for _, p := range found.Peaks {
		t.Rows = append(t.Rows, []string{widthText(p.Span), plain(p.Client), count(p.P50), count(p.P90), count(p.P99), count(p.P999), count(p.Most)})
	}
	return page.Section{Title: "Peaks of clients", Table: t}
}

// peaksChart draws how many clients have had so many requests or more.
func peaksChart(found recommend.Result) page.Section {
	c := &page.Chart{X: page.Axis{Label: "requests of a client, at its peak", Log: true}, Y: page.Axis{Label: "clients with so many or more", Log: true}}
	var requests []int64
	for _, p := range found.Peaks {
		for _, t := range p.Tail {
			requests = append(requests, t.Requests)
		}
	}
	slices.Sort(requests)
	for _, n := range slices.Compact(requests) {
		c.Values = append(c.Values, float64(n))
	}
	for _, p := range found.Peaks {
		s := page.Series{Name: "in any " + widthText(p.Span)}
		for _, x := range c.Values {
			var value *float64
			for _, t := range p.Tail {
				if n := float64(t.Clients); float64(t.Requests) >= x {
					value = &n // of the smallest number kept that is not below x
					break
				}
			}
			s.Values = append(s.Values, value)
		}
		c.Series = append(c.Series, s)
	}
	return page.Section{Title: "Distribution of peaks", Chart: c, About: "How many clients have had so many requests or more in their busiest second, ten seconds, minute and hour."}
}

// cumulative draws the requests admitted so far.
func cumulative(res replay.Result, line float64) page.Section {
	c := &page.Chart{X: page.Axis{Label: "time (UTC)", Time: true}, Y: page.Axis{Label: "requests so far"}, Values: columnsOf(res)}
	c.Values = append(c.Values, c.Values[len(c.Values)-1]+res.Width.Seconds())
	sums := func(of func(i int) int64) (out []int64) {
		total := int64(0)
		out = append(out, 0)
		for i := range res.OverTime {
			total += of(i)
			out = append(out, total)
		}
		return out
	}
	same := distinctRules(res)
	for i, r := range res.Rules {
		if slices.Index(same, same[i]) == i {
			c.Series = append(c.Series, series("admitted by "+namesOf(res, same, i), sums(func(j int) int64 { return res.OverTime[j] - r.OverTime[j] })))
		}
	}
	if line > 0 {
		var ideal []float64
		for i := range c.Values {
			ideal = append(ideal, line*float64(i)/float64(len(c.Values)-1))
		}
		c.Series = append(c.Series, series("the rate, evenly", ideal))
	}
	return page.Section{Title: "Admitted so far", Chart: c, About: "Beside what the rate comes to in the time of each key, drawn as a line."}
}

func comparedTable(rep Comparison) page.Section {
	found := rep.Found
	t := &page.Table{Header: []string{"algorithm", "admitted", "share", "of the rate", "bytes a key"}}
	for _, span := range found.Spans {
		t.Header = append(t.Header, "most in any "+widthText(span))
	}
	for i, r := range found.Replay.Rules {
		row := []string{r.Rule.AlgorithmText(), count(r.Allowed), share(r.Allowed, found.Replay.Requests), ofLine(r.Allowed, found.Line), fmt.Sprintf("%.0f", found.Algorithms[i].Bytes)}
		for j, most := range found.Algorithms[i].Most {
			row = append(row, fmt.Sprintf("%d of %d", most, found.Algorithms[i].Bound[j]))
		}
		t.Rows = append(t.Rows, row)
	}
	return page.Section{Title: "What each admits", Table: t, About: "Of the most that one key was admitted in any span, the second number is what is promised."}
}
