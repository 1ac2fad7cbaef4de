package countertest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// outcome is the answer of a call: its text (see Replay), and the times of each status.
type outcome struct {
	text  string
	times []times
}

// times are RetryAfter and ResetAfter of a status; -1 where nothing is said of them.
type times struct{ retry, reset time.Duration }

// differs says how another outcome differs from o, or returns "". Times may differ by slack.
func (o *outcome) differs(other outcome, slack time.Duration) string {
	if o.text != other.text {
		return fmt.Sprintf("want %s, got %s", o.text, other.text)
	}
	if len(o.times) != len(other.times) {
		return ""
	}
	for i, t := range o.times {
		u := other.times[i]
		if !near(t.retry, u.retry, slack) {
			return fmt.Sprintf("descriptor %d: want RetryAfter %v, got %v (%s)", i, t.retry, u.retry, o.text)
		}
		if !near(t.reset, u.reset, slack) {
			return fmt.Sprintf("descriptor %d: want ResetAfter %v, got %v (%s)", i, t.reset, u.reset, o.text)
		}
	}
	return ""
}

func near(want, got, slack time.Duration) bool {
	switch {
	case want < 0:
		return true
	case want == sluice.Never || got == sluice.Never:
		return want == got
	}
	return (want - got).Abs() <= slack
}

// driver makes the calls of a script on engines.
type driver struct {
	counts  Counts
	sets    []*rules.Set
	engines []*rules.Engine
}

func newDriver(tb testing.TB, s *script, c Counts) *driver {
	tb.Helper()
	sets, err := s.load()
	if err != nil {
		tb.Fatal(err)
	}
	d := &driver{counts: c, sets: sets}
	for range max(c.Processes, 1) {
		config := c.Config()
		config.StopWhenOver, config.Shadow = s.stop, s.shadow
		e, err := rules.New(sets[0], config)
		if err != nil {
			tb.Fatal(err)
		}
		d.engines = append(d.engines, e)
	}
	return d
}

func (d *driver) now() time.Time {
	if d.counts.Now == nil {
		return time.Now()
	}
	return d.counts.Now()
}

func (d *driver) pass(t time.Duration) {
	if d.counts.Pass == nil {
		time.Sleep(t)
		return
	}
	d.counts.Pass(t)
}

// call makes a call.
func (d *driver) call(c *call) (out outcome) {
	e := d.engines[c.process%len(d.engines)]
	h := rules.Hold{ID: c.id, TTL: c.ttl, GiveBack: c.back, Step: c.step, Request: c.request()}
	var resp rules.Response
	var err error
	switch c.op {
	case "take":
		err = e.Decide(&h.Request, &resp)
	case "hold":
		err = e.Hold(&h, &resp)
	case "extend":
		err = e.Extend(&h, &resp)
	case "settle":
		err = e.Settle(&h)
	case "release":
		err = e.Release(&h)
	case "reset":
		err = e.Reset(&h.Request)
	case "reload":
		for _, e := range d.engines {
			err = errors.Join(err, e.Swap(d.sets[c.set]))
		}
	case "pass":
		d.pass(c.ttl)
	case "series":
		out.text = d.series(c.series)
		return out
	}
	if err != nil {
		out.text = errorText(err)
		return out
	}
	var text strings.Builder
	if len(resp.Statuses) > 0 {
		text.WriteString(resp.Code.String())
	} else if c.id != "" {
		text.WriteString("OK")
	}
	for _, mark := range []struct {
		set  bool
		text string
	}{{h.Again, " again"}, {h.Capped, " capped"}, {resp.WouldDeny, " would"}} {
		if mark.set {
			text.WriteString(mark.text)
		}
	}
	for i := range resp.Statuses {
		st := &resp.Statuses[i]
		text.WriteString(" " + statusText(st.Limited, st.Code == rules.OverLimit, st.Over, st.RetryAfter == sluice.Never, int64(st.Remaining)))
		if st.Code == rules.OverLimit && st.RetryAfter <= 0 {
			text.WriteString(" at once") // no denial says so
		}
		out.times = append(out.times, times{st.RetryAfter, st.ResetAfter})
	}
	out.text = text.String()
	return out
}

func statusText(limited, denied, over, never bool, remaining int64) string {
	mark := ""
	switch {
	case !limited:
		return "-"
	case denied && never:
		mark = "X"
	case denied:
		mark = "x"
	case over:
		mark = "o"
	}
	return fmt.Sprint(remaining, mark)
}

func errorText(err error) string {
	for known, text := range map[error]string{rules.ErrNotHeld: "not held", rules.ErrOtherHold: "other", rules.ErrEndedHold: "ended", rules.ErrManyHolds: "many", rules.ErrStore: "no answer"} {
		if errors.Is(err, known) {
			return text
		}
	}
	if invalid := (*rules.InvalidError)(nil); errors.As(err, &invalid) {
		return "invalid"
	}
	return err.Error()
}

// request is the call as an engine gets it.
func (c *call) request() rules.Request {
	domain := map[string]string{"o": "other"}[c.domain]
	if domain == "" {
		domain = c.domain
	}
	req := rules.Request{Domain: domain}
	for i := range c.descriptors {
		d := &c.descriptors[i]
		out := rules.Descriptor{Entries: d.entries, Refund: d.refund, Override: d.override}
		if !d.counted {
			out.Hits = &d.hits
		}
		req.Descriptors = append(req.Descriptors, out)
	}
	return req
}

// series are the numbers of a rule in all processes.
func (d *driver) series(rule string) string {
	domain, path := "d", rule
	if before, rest, ok := strings.Cut(rule, "/"); ok {
		domain, path = before, rest
	}
	if path != "override" {
		path = domain + "." + path
	}
	var sum numbers
	for _, e := range d.engines {
		for _, s := range e.Series() {
			if s.Domain == domain && s.Path == path {
				for i, n := range []uint64{s.Total, s.Within, s.Over, s.Shadow, s.Refunded, s.Absorbed, s.Estimated, s.Settled} {
					sum[i] += int64(n)
				}
			}
		}
	}
	return sum.String()
}

// numbers are the statistics of a rule.
type numbers [8]int64

// The numbers.
const (
	total = iota
	within
	over
	shadow
	refunded
	absorbed
	estimated
	settled
)

func (n *numbers) String() string { return strings.Trim(fmt.Sprint(*n), "[]") }
