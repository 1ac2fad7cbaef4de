package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// maxClientWidth fits every IPv6 address.
const maxClientWidth = 39

// fewProxies is how many clients may still be no more than the proxies in front.
const fewProxies = 4

const indent = "  "

const day = 24 * time.Hour

// Text writes the report for a person at a terminal. Its lines are at most 80
// columns wide unless the numbers are very large.
func Text(w io.Writer, rep Report) error {
	var b bytes.Buffer
	writeLog(&b, rep)
	writeRules(&b, rep.Result)
	for i, r := range rep.Result.Rules {
		if r.Rule.Domain != "" {
			writeLimits(&b, i, r)
		}
	}
	if rep.Result.Changes != nil {
		writeChanges(&b, rep.Result)
	}
	writeTop(&b, rep.Result)
	writeOverTime(&b, rep.Result)
	_, err := w.Write(b.Bytes())
	return err
}

func writeLog(w io.Writer, rep Report) {
	for i, fact := range facts(rep) {
		if i > 0 {
			fact = indent + fact
		}
		fmt.Fprintln(w, fact)
	}
}

// facts are the words of text and pages about a log: its source, then remarks.
func facts(rep Report) []string {
	f, res := rep.Log, rep.Result
	out := []string{
		message.OneLine(rep.Source) + rep.Note,
		fmt.Sprintf("%s of %s, %s format", message.Count(res.Requests, "request"), message.Count(res.Clients, "client"), f.Format),
		newClock(res).span(res),
	}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if rep.Key != "" {
		add("%s", keyText(rep))
	}
	if res.Late > 0 {
		add("%s out of order, at most %v late; the clock never goes back", message.Count(res.Late, "request"), res.MaxLate)
	}
	if res.Private && res.Clients <= fewProxies {
		add("each client has a private address: if that is a proxy, log what it forwards")
	}
	if rep.Incomplete != "" {
		add("not read to the end: %s", message.OneLine(rep.Incomplete))
	}
	if f.Outside > 0 {
		add("%s before --from or after --to", message.Count(f.Outside, "request"))
	}
	counted := fmt.Sprintf("%s counted, %d malformed", message.Count(f.Counted, "line"), f.Malformed)
	if f.Malformed == 0 {
		return append(out, counted)
	}
	return append(out, counted+": "+f.MalformedNumbers(accesslog.MaxMalformedLines),
		fmt.Sprintf("line %d: %s", f.MalformedLines[0], message.OneLine(f.MalformedReason)))
}

// keyText names the kind of clients, and the number of requests of none.
func keyText(rep Report) string {
	text := "a client is what has the same " + strings.ReplaceAll(plain(rep.Key), ",", ", ")
	if n := rep.Log.Keyless; n > 0 {
		text += fmt.Sprintf("; left out for want of it: %s", message.Count(n, "request"))
	}
	return text
}

func writeRules(w io.Writer, res replay.Result) {
	fmt.Fprintln(w)
	t := table{indent: indent, left: []bool{false, true, false, false, false, false, true}}
	t.add("#", "rule", "allowed", "denied", "share", "clients", "first denial")
	clock := newClock(res)
	for i, r := range res.Rules {
		first := "-"
		if r.FirstDenied != nil {
			first = clock.text(r.FirstDenied.Time)
		}
		t.add(strconv.Itoa(i+1), shorten(plain(r.Rule.String()), maxClientWidth), strconv.FormatInt(r.Allowed, 10), strconv.FormatInt(r.Denied, 10),
			share(r.Denied, res.Requests), strconv.Itoa(r.LimitedClients), first)
	}
	t.write(w)
}

// writeLimits writes the limits of a file of rules.
func writeLimits(w io.Writer, i int, r replay.RuleResult) {
	if r.Undescribed > 0 {
		fmt.Fprintf(w, "\n%d requests of #%d passed without a descriptor: the log lacks what \"http\" or --descriptor asks for\n", r.Undescribed, i+1)
	}
	if r.Refused > 0 {
		fmt.Fprintf(w, "\n%d requests of #%d were denied for what \"http\" cannot use: a header or a parameter that is there twice, or too long\n", r.Refused, i+1)
	}
	if len(r.Limits) == 0 {
		fmt.Fprintf(w, "\nno limit of #%d fits: name the entries of requests with --descriptor\n", i+1)
		return
	}
	fmt.Fprintf(w, "\nlimits of #%d, in hits\n\n", i+1)
	t := table{indent: indent, left: []bool{true, false, false, false, false}}
	t.add("limit", "hits", "near", "over", "share")
	for _, l := range r.Limits {
		t.add(shorten(plain(l.Path), maxClientWidth), strconv.FormatInt(l.Hits, 10), strconv.FormatInt(l.Near, 10),
			strconv.FormatInt(l.Over, 10), share(l.Over, l.Hits))
	}
	t.write(w)
}

// writeTop writes one table for all rules: every client that is among the top of
// any rule, with its denials under each.
func writeTop(w io.Writer, res replay.Result) {
	clients := topOfAny(res.Rules)
	if len(clients) == 0 {
		return
	}
	fmt.Fprintf(w, "\nclients with the most denials\n\n")
	t := table{indent: indent, left: make([]bool, 2+len(res.Rules))}
	t.left[0] = true
	header := []string{"client", "requests"}
	for i := range res.Rules {
		header = append(header, fmt.Sprintf("#%d", i+1))
	}
	if len(res.Rules) == 1 {
		header[2] = "denied"
	}
	t.add(header...)
	for _, c := range clients {
		row := []string{shorten(plain(c.Name), maxClientWidth), strconv.FormatInt(c.Requests, 10)}
		for _, denied := range c.Denied {
			row = append(row, strconv.FormatInt(denied, 10))
		}
		t.add(row...)
	}
	t.write(w)
}

// topOfAny merges the top clients of all rules, those with the most denials under
// all rules together first.
func topOfAny(rules []replay.RuleResult) []replay.Client {
	var merged []replay.Client
	seen := make(map[string]bool)
	for _, r := range rules {
		for _, c := range r.Top {
			if !seen[c.Name] {
				seen[c.Name] = true
				merged = append(merged, c)
			}
		}
	}
	slices.SortFunc(merged, func(a, b replay.Client) int {
		return cmp.Or(cmp.Compare(sum(b.Denied), sum(a.Denied)), strings.Compare(a.Name, b.Name))
	})
	return merged
}

func writeOverTime(w io.Writer, res replay.Result) {
	fmt.Fprintf(w, "\nover time, %s a column\n", widthText(res.Width))
	writeBars(w, "requests", res.OverTime, slices.Max(res.OverTime))
	most := int64(0)
	for _, r := range res.Rules {
		most = max(most, slices.Max(r.OverTime))
	}
	for i, r := range res.Rules {
		if r.FirstDenied != nil {
			title := fmt.Sprintf("denied by #%d %s, from request %d on", i+1, shorten(plain(r.Rule.String()), maxClientWidth), r.FirstDenied.Request)
			writeBars(w, title, r.OverTime, most)
		}
	}
	writeAxis(w, res)
}

func writeAxis(w io.Writer, res replay.Result) {
	layout := newClock(res).axis
	end := utc(res.Start)
	for range res.OverTime { // all columns together may be longer than the longest Duration
		end = end.Add(res.Width)
	}
	from, to := utc(res.Start).Format(layout), end.Format(layout)
	gap := max(2, len(res.OverTime)-len(from)-len(to))
	fmt.Fprintf(w, "%s%s%*s%s\n", indent, from, gap, "", to)
}

// writeBars draws counts against the count that stands for full height. The
// smallest bar means at least one; a dot means none.
func writeBars(w io.Writer, title string, counts []int64, full int64) {
	levels := []rune("\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588")
	bars := make([]rune, len(counts))
	for i, n := range counts {
		bars[i] = '\u00b7'
		if n > 0 {
			level := float64(n) / float64(full) * float64(len(levels))
			bars[i] = levels[max(1, int(level+0.5))-1]
		}
	}
	fmt.Fprintf(w, "\n%s%s, at most %d\n%s%s\n", indent, title, slices.Max(counts), indent, string(bars))
}

// clock writes the times of one log: all alike, and as short as they can be.
type clock struct {
	date string // layout of the date, empty if the log has only one
	time string // layout of the time of day
	axis string // layout of the ends of a column
}

func newClock(res replay.Result) clock {
	c := clock{time: time.TimeOnly}
	if res.Width < time.Second {
		c.time += "."
		for w := res.Width; w%time.Second != 0; w *= 10 {
			c.time += "0"
		}
	}
	first, last := utc(res.First), utc(res.Last)
	switch {
	case first.Year() != last.Year():
		c.date = "2006-01-02 "
	case first.YearDay() != last.YearDay():
		c.date = "01-02 "
	}
	switch {
	case res.Width%day == 0:
		c.axis = time.DateOnly
	case res.Width%time.Minute == 0:
		c.axis = c.date + "15:04"
	default:
		c.axis = c.date + c.time
	}
	return c
}

func (c clock) text(nanos int64) string { return utc(nanos).Format(c.date + c.time) }

// span returns the time from the first to the last request, in full.
func (c clock) span(res replay.Result) string {
	from, to := utc(res.First), utc(res.Last)
	if c.date == "" {
		return from.Format("2006-01-02 "+c.time) + " to " + to.Format(c.time) + " UTC"
	}
	return from.Format("2006-01-02 "+c.time) + " to " + to.Format("2006-01-02 "+c.time) + " UTC"
}

func utc(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }

// widthText drops the zero parts that time.Duration writes: 1m, not 1m0s.
func widthText(d time.Duration) string {
	if d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	s := d.String()
	if d%time.Minute == 0 {
		s = strings.TrimSuffix(s, "0s")
	}
	if d%time.Hour == 0 {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// share is all or nothing only if that is exact.
func share(part, whole int64) string {
	s := fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
	switch {
	case s == "0.0%" && part > 0:
		return "<0.1%"
	case s == "100.0%" && part < whole:
		return ">99.9%"
	}
	return s
}

func sum(counts []int64) int64 {
	var total int64
	for _, n := range counts {
		total += n
	}
	return total
}
