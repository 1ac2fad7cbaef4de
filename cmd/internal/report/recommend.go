package report

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/recommend"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// Recommendation is all there is to say about the limits that a log asks for.
type Recommendation struct {
	Report // of the log, under the limits recommended
	Found  recommend.Result
	Check  *Report // of a second log, under the same limits; nil without one
	Gate   *Gate   // nil without one
}

// A Gate is how many clients of a log may be denied something: of the second log, if there is one.
type Gate struct {
	Most    string // as it was asked for
	Denied  int    // so many clients
	Of      int
	Exceeds []replay.Rule
}

// RecommendText writes a recommendation for a person at a terminal.
func RecommendText(w io.Writer, rep Recommendation) error {
	var b bytes.Buffer
	writeLog(&b, rep.Report)
	writePeaks(&b, rep)
	writeFrontier(&b, rep.Found)
	writeChoices(&b, rep.Found)
	writeTop(&b, rep.Result)
	if rep.Check != nil {
		writeCheck(&b, rep)
	}
	if rep.Gate != nil {
		writeGate(&b, *rep.Gate)
	}
	for _, target := range rep.Found.TargetsFor() {
		fmt.Fprintf(&b, "\n%s\n\n", target.Title)
		for line := range strings.Lines(target.Write(rep.Found)) {
			fmt.Fprint(&b, indent, line)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writePeaks(w io.Writer, rep Recommendation) {
	fmt.Fprintf(w, "\nrequests of one client, the most in any\n\n")
	t := table{indent: indent, left: []bool{true, false, false, false, false, false, true}}
	t.add("", "p50", "p90", "p99", "p99.9", "max", "by")
	for _, p := range rep.Found.Peaks {
		t.add(widthText(p.Span), count(p.P50), count(p.P90), count(p.P99), count(p.P999), count(p.Most), shorten(plain(p.Client), maxClientWidth))
	}
	t.write(w)
	if covers := time.Duration(rep.Result.Last - rep.Result.First); covers < rep.Found.Per {
		fmt.Fprintf(w, "\n%sthe log covers only %v, and so less than --per %s\n", indent, covers, widthText(rep.Found.Per))
	}
}

func count(n int64) string { return strconv.FormatInt(n, 10) }

func writeFrontier(w io.Writer, found recommend.Result) {
	fmt.Fprintf(w, "\nthe smallest burst at a rate under gcra that denies something to at most\n\n")
	t := table{indent: indent, left: make([]bool, 1+len(found.Columns))}
	t.left[0] = true
	header := []string{"rate"}
	for _, c := range found.Columns {
		header = append(header, columnText(c))
	}
	t.add(header...)
	for _, p := range found.Frontier {
		row := []string{p.Rate.String()}
		for _, burst := range p.Bursts {
			if burst == 0 {
				row = append(row, "-")
			} else {
				row = append(row, count(burst))
			}
		}
		t.add(row...)
	}
	t.write(w)
}

func columnText(c recommend.Column) string {
	if c.Share == 0 {
		return "nobody"
	}
	return fmt.Sprintf("%v: %d", c.Share, c.Denied)
}

func writeChoices(w io.Writer, found recommend.Result) {
	fmt.Fprintf(w, "\nrecommended, to deny nothing to %v of clients, so something to %d of %d at most\n\n",
		found.Denied.Rest(), found.DeniedClients, found.Evidence.Clients)
	t := table{indent: indent, left: []bool{false, true, false, false, false, false, false, false}}
	t.add("#", "rule", "most", "clients", "requests", "share", "streak", "top 5")
	rules := found.Evidence.Rules
	for _, c := range found.Choices {
		if c.Refused != "" {
			continue
		}
		t.add(append([]string{strconv.Itoa(len(found.Evidence.Rules) - len(rules) + 1), c.Rule.String(), strconv.Itoa(c.Most)}, deniedCells(rules[0], found.Evidence)...)...)
		rules = rules[1:]
	}
	t.write(w)
	for _, c := range found.Choices {
		if c.Refused != "" {
			fmt.Fprintf(w, "%snot %s\n", indent, c.Refused)
		}
	}
	fmt.Fprintf(w, `
  most: what one client is admitted in any %s at most
  clients, requests: those that are denied something, those that are denied
  streak: the most requests of one client that are denied in a row
  top 5: which part of the denials the five clients with the most have
`, widthText(found.Per))
}

// deniedCells are the denials of a rule: clients, requests and their share, the longest streak, the share of the heaviest.
func deniedCells(r replay.RuleResult, res replay.Result) []string {
	streak, heaviest := "-", "-"
	if s := r.LongestStreak; s != nil {
		streak, heaviest = count(s.Denied), share(r.HeaviestDenied, r.Denied)
	}
	return []string{strconv.Itoa(r.LimitedClients), count(r.Denied), share(r.Denied, res.Requests), streak, heaviest}
}

func writeCheck(w io.Writer, rep Recommendation) {
	fmt.Fprint(w, "\nthe same limits on ")
	writeLog(w, *rep.Check)
	res := rep.Check.Result
	goal := rep.Found.Denied.Of(res.Clients)
	fmt.Fprintf(w, "\n")
	t := table{indent: indent, left: []bool{false, true, false, false, false, false, false, true}}
	t.add("#", "rule", "clients", "requests", "share", "streak", "top 5", fmt.Sprintf("at most %d", goal))
	for i, r := range res.Rules {
		holds := "holds"
		if r.LimitedClients > goal {
			holds = "does not hold"
		}
		t.add(append(append([]string{strconv.Itoa(i + 1), r.Rule.String()}, deniedCells(r, res)...), holds)...)
	}
	t.write(w)
	writeTop(w, res)
}

func writeGate(w io.Writer, g Gate) {
	if len(g.Exceeds) == 0 {
		fmt.Fprintf(w, "\nwithin --max-denied-clients %s: no limit denies something to more than %d of %d clients\n", g.Most, g.Denied, g.Of)
		return
	}
	fmt.Fprintf(w, "\nbeyond --max-denied-clients %s, more than %d of %d clients:\n", g.Most, g.Denied, g.Of)
	for _, rule := range g.Exceeds {
		fmt.Fprintf(w, "%s%v\n", indent, rule)
	}
}
