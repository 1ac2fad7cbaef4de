package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/sluice-go/sluice/cmd/internal/compare"
	"github.com/sluice-go/sluice/cmd/internal/message"
)

// Comparison is all there is to say about algorithms that have decided the same requests.
type Comparison struct {
	Report
	Found compare.Result
}

// CompareText writes a comparison for a person at a terminal.
func CompareText(w io.Writer, rep Comparison) error {
	var b bytes.Buffer
	found, res := rep.Found, rep.Found.Replay
	if rep.Log.Format != "" {
		writeLog(&b, rep.Report)
	} else {
		fmt.Fprintf(&b, "%s\n%s%s of %s\n%s%s\n", message.OneLine(rep.Source)+rep.Note, indent,
			message.Count(res.Requests, "request"), message.Count(res.Clients, "key"), indent, newClock(res).span(res))
	}
	fmt.Fprintf(&b, "\nadmitted under %v, whose rate comes to %.0f in the time of each key\n\n", found.Limit, found.Line)
	t := table{indent: indent, left: []bool{false, true, false, false, false, false}}
	t.add("#", "algorithm", "admitted", "share", "of the rate", "bytes a key")
	for i, r := range res.Rules {
		t.add(strconv.Itoa(i+1), r.Rule.AlgorithmText(), count(r.Allowed), share(r.Allowed, res.Requests), ofLine(r.Allowed, found.Line),
			fmt.Sprintf("%.0f", found.Algorithms[i].Bytes))
	}
	t.write(&b)
	fmt.Fprintf(&b, "\nthe most that one key was admitted in any span, and what is promised\n\n")
	t = table{indent: indent, left: make([]bool, 2+len(found.Spans))}
	t.left[1] = true
	header := []string{"#", "algorithm"}
	for _, span := range found.Spans {
		header = append(header, widthText(span))
	}
	t.add(header...)
	for i, r := range res.Rules {
		row := []string{strconv.Itoa(i + 1), r.Rule.AlgorithmText()}
		for j, most := range found.Algorithms[i].Most {
			row = append(row, fmt.Sprintf("%d of %d", most, found.Algorithms[i].Bound[j]))
		}
		t.add(row...)
	}
	t.write(&b)
	writeOverTime(&b, res)
	_, err := w.Write(b.Bytes())
	return err
}

func ofLine(n int64, line float64) string {
	if line == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(n)/line)
}

// comparisonData is the document that CompareJSON writes. What is said of document holds for it.
type comparisonData struct {
	Log        logFacts        `json:"log"` // of a pattern its name is the source, and its lines are 0
	Limit      string          `json:"limit"`
	Line       float64         `json:"line"`     // the rate times the time of each key
	Spans      []int64         `json:"spans_ns"` // of most and promised
	Algorithms []algorithmData `json:"algorithms"`
}

type algorithmData struct {
	ruleData
	Most        []int   `json:"most"`     // that a key was admitted in any span
	Bound       []int   `json:"promised"` // in any span, at most
	BytesPerKey float64 `json:"bytes_per_key"`
}

// CompareJSON writes a comparison as one JSON object, in ASCII as JSON does.
func CompareJSON(w io.Writer, rep Comparison) error {
	found := rep.Found
	rep.Result = found.Replay
	doc := comparisonData{Log: newLogFacts(rep.Report), Limit: found.Limit.String(), Line: found.Line}
	for _, span := range found.Spans {
		doc.Spans = append(doc.Spans, int64(span))
	}
	for i, a := range found.Algorithms {
		doc.Algorithms = append(doc.Algorithms, algorithmData{newRuleData(i, found.Replay.Rules[i], found.Replay.Requests), a.Most, a.Bound, a.Bytes})
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(asciiJSON(text), '\n'))
	return err
}
