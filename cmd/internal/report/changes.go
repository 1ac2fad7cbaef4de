package report

import (
	"fmt"
	"io"

	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// writeChanges writes the changes when one rule takes the place of another.
func writeChanges(w io.Writer, res replay.Result) {
	c := res.Changes
	fmt.Fprintf(w, "\n#%d in the place of #%d\n\n", c.New+1, c.Old+1)
	t := table{indent: indent, left: []bool{true, false, false, false}}
	t.add("", "requests", "share", "clients")
	t.add("kept out: allowed before, denied after", count(c.KeptOut), share(c.KeptOut, res.Requests), fmt.Sprint(c.KeptOutClients))
	t.add("let in: denied before, allowed after", count(c.LetIn), share(c.LetIn, res.Requests), fmt.Sprint(c.LetInClients))
	t.write(w)
	fmt.Fprintf(w, "%sdenied something for the first time: %s; nothing any more: %s\n", indent,
		message.Count(c.NewlyLimited, "client"), message.Count(c.NoLongerLimited, "client"))
	if len(c.Top) == 0 {
		return
	}
	fmt.Fprintf(w, "\nclients with the most changes, and when\n\n")
	t = table{indent: indent, left: []bool{true, false, false, false, true, true}}
	t.add("client", "requests", "kept out", "let in", "from", "to")
	clock := newClock(res)
	for _, p := range c.Top {
		t.add(shorten(plain(p.Name), clientWidth), count(p.Requests), count(p.KeptOut), count(p.LetIn), clock.text(p.First), clock.text(p.Last))
	}
	t.write(w)
}

// clientWidth leaves room for two times.
const clientWidth = 21

// changesData are the changes when the rule "against" takes the place of "rules".
type changesData struct {
	KeptOut         int64          `json:"kept_out"` // requests allowed before, and denied after
	LetIn           int64          `json:"let_in"`   // denied before, and allowed after
	KeptOutClients  int            `json:"kept_out_clients"`
	LetInClients    int            `json:"let_in_clients"`
	NewlyLimited    int            `json:"newly_limited_clients"`     // denied something only after
	NoLonger        int            `json:"no_longer_limited_clients"` // denied something only before
	Top             []clientChange `json:"top"`                       // by changes, ties in byte order
	KeptOutOverTime []int64        `json:"kept_out_over_time"`
	LetInOverTime   []int64        `json:"let_in_over_time"`
}

type clientChange struct {
	Client    string `json:"client"`
	Requests  int64  `json:"requests"`
	OldDenied int64  `json:"denied_before"`
	NewDenied int64  `json:"denied_after"`
	KeptOut   int64  `json:"kept_out"`
	LetIn     int64  `json:"let_in"`
	First     string `json:"first"` // time of the first change, and of the last
	Last      string `json:"last"`
}

func newChangesData(res replay.Result) *changesData {
	c := res.Changes
	data := &changesData{
		c.KeptOut, c.LetIn, c.KeptOutClients, c.LetInClients, c.NewlyLimited, c.NoLongerLimited, []clientChange{}, c.KeptOutOverTime, c.LetInOverTime,
	}
	for _, p := range c.Top {
		data.Top = append(data.Top, clientChange{p.Name, p.Requests, p.OldDenied, p.NewDenied, p.KeptOut, p.LetIn, timeText(p.First), timeText(p.Last)})
	}
	return data
}
