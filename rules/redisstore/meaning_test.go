package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/rules"
)

// meanings are the rows of rules/MEANING.md. A line of a row is a call and its outcome:
//
//	hold|extend|settle|release ID DESCRIPTOR:HITS,... [back] [step=S] [ttl=T] -> CODE [again] [capped] REMAINING...
//	look DESCRIPTOR,... -> REMAINING...
//	denial DESCRIPTOR:HITS -> RetryAfter ResetAfter, or never, of Decide
//	series RULE -> hits, over, estimated, settled
//	reset DESCRIPTOR,...
//	reload N, of the sets of rules
//	wait: until what lasts a millisecond has ended
var meanings = []struct {
	name   string
	shadow bool
	lines  string
}{
	{"made, all or none", false, `
		hold a w=u:5,g=u:5 -> OK 95 5
		hold b w=u:5,g=u:6 -> OVER_LIMIT 95 5
		hold b w=u:96,g=u:1 -> OVER_LIMIT 0 5
		look w=u,g=u -> 95 5
		settle b w=u:5,g=u:6 -> not held
		hold b w=u:95,g=u:1 -> OK 0 4`},
	{"of 0 hits on a full limit", false, `
		hold a w=u:100,f=u:100,g=u:10,i=u:5 -> OK 0 0 0 0
		hold b w=u:0,f=u:0,g=u:0,i=u:0 -> OK 0 0 0 0
		hold c w=u:0,g=u:1 -> OVER_LIMIT 0 0
		release a w=u:0,f=u:0,g=u:0,i=u:0 -> OK
		extend b w=u:1,f=u:2,g=u:3,i=u:4 -> OK 99 98 7 1
		settle b w=u:2,f=u:3,g=u:4,i=u:4 -> OK
		look w=u,f=u,g=u,i=u -> 98 97 6 5`},
	{"on a full rule in shadow mode", false, `
		hold a sw=u:8,sg=u:8 -> OK 2 2
		hold b sw=u:8,sg=u:8 -> OK 0 2
		look sw=u,sg=u -> 0 2
		settle b sw=u:1,sg=u:1 -> OK
		look sw=u,sg=u -> 1 1
		release a sw=u:0,sg=u:0 -> OK
		look sw=u,sg=u -> 9 9`},
	{"a limit of 0", false, `
		hold a z=u:1 -> OVER_LIMIT 0
		hold a w=u:5,z=u:1 -> OVER_LIMIT 100 0
		settle a w=u:5,z=u:1 -> not held
		look w=u -> 100
		hold b w=u:5,z=u:0 -> OK 95 0
		release b w=u:0,z=u:0 -> OK
		look w=u -> 100
		hold c w=u:5,sz=u:1,sb=u:1 -> OK 95 0 0
		settle c w=u:4,sz=u:0,sb=u:0 -> OK
		look w=u -> 96`},
	{"of what no rule limits", false, `
		hold a none=u:5 -> OK -
		settle a none=u:5 -> not held
		extend a none=u:5 -> not held
		release a none=u:0 -> not held
		hold a free=u:5 -> OK -
		settle a free=u:5 -> OK
		hold a w=u:5,none=u:1,free=u:1 -> OK 95 - -
		settle a w=u:5 -> not held
		settle a w=u:5,nine=u:1,free=u:1 -> not held
		settle a none=u:1 -> not held
		settle a w=u:4,none=u:1,free=u:1 -> OK
		look w=u -> 96`},
	{"in an unknown domain", false, `
		hold a other/w=u:5 -> OK -
		settle a other/w=u:5 -> not held
		extend a other/w=u:5 -> not held
		release a other/w=u:0 -> not held
		hold a w=u:5 -> OK 95
		settle a other/w=u:5 -> not held
		settle a w=u:5 -> OK`},
	{"again", false, `
		hold a w=u:5,g=u:1 -> OK 95 9
		hold b w=u:10 -> OK 85
		hold a w=u:5,g=u:1 -> OK again 85 9
		series w -> 15 0 15 0
		hold a w=u:5,g=u:1 ttl=5m -> OK again 85 9
		hold a w=u:5,g=u:1 back -> other
		hold a w=u:6,g=u:1 -> other
		hold a w=v:5,g=u:1 -> other
		hold a g=u:1,w=u:5 -> other
		hold a f=u:5 -> other
		hold a none=u:5 -> OK -
		look w=u,w=v,f=u,g=u -> 85 100 100 9`},
	{"patterns that share a count", false, `
		hold a p=x1:5 -> OK 95
		hold a p=x2:5 -> other
		settle a p=x2:5 -> not held
		settle a p=x1:4 -> OK
		look p=x1 -> 96`},
	{"after its end", false, `
		hold a w=u:5 -> OK 95
		settle a w=u:3 -> OK
		hold a w=u:5 -> ended
		hold a w=u:6 -> other
		hold a w=v:5 -> other
		hold a f=u:5 -> other
		hold b w=u:5 back -> OK 92
		release b w=u:0 -> OK
		hold b w=u:5 back -> ended
		hold b w=u:5 -> other
		look w=u,w=v,f=u -> 97 100 100
		series w -> 10 0 10 3`},
	{"lapsed", false, `
		hold a w=u:5,g=u:1,i=u:1 ttl=1ms -> OK 95 9 4
		wait
		look w=u,g=u,i=u -> 95 9 5
		settle a w=u:5,g=u:1,i=u:1 -> not held
		hold b w=u:5,g=u:1,i=u:1 ttl=1ms back -> OK 90 8 4
		wait
		look w=u,g=u,i=u -> 95 9 5
		settle b w=u:5,g=u:1,i=u:1 -> not held
		hold a w=u:5,g=u:1,i=u:1 -> OK 90 8 4`},
	{"extended", false, `
		hold a w=u:5,g=u:1 -> OK 95 9
		extend a w=u:5,g=u:0 step=1 -> OK 90 9
		extend a w=u:5,g=u:0 step=1 -> OK again 90 9
		extend a w=u:7,g=u:3 step=1 -> OK again 90 9
		extend a w=u:90,g=u:10 step=2 -> OVER_LIMIT 90 9
		extend a w=u:91,g=u:0 step=2 -> OVER_LIMIT 0 9
		extend a w=u:90,g=u:9 step=2 -> OK 0 0
		extend a w=u:0,g=u:0 -> OK 0 0
		extend a w=u:1 -> not held
		extend a g=u:0,w=u:0 -> not held
		extend b w=u:0,g=u:0 -> not held
		settle a w=u:50,g=u:5 -> OK
		extend a w=u:0,g=u:0 step=1 -> not held
		look w=u,g=u -> 50 5
		series w -> 281 91 100 50`},
	{"settled above and below, again, and with another number", false, `
		hold a w=u:50,g=u:5,f=u:50 -> OK 50 5 50
		settle a w=u:20,g=u:7,f=u:60 -> OK
		settle a w=u:20,g=u:7,f=u:60 -> OK again
		settle a w=u:21,g=u:7,f=u:60 -> not held
		release a w=u:0,g=u:0,f=u:0 -> not held
		look w=u,g=u,f=u -> 80 3 40
		series w -> 50 0 50 20
		hold b w=u:50,none=u:5 -> OK 30 -
		release b w=u:0,none=u:0 -> OK
		release b w=u:0,none=u:0 -> OK again
		settle b w=u:0,none=u:0 -> OK again
		settle b w=u:0,none=u:1 -> not held`},
	{"in flight", false, `
		hold a i=u:3,w=u:1 -> OK 2 99
		settle a i=u:3,w=u:1 -> OK
		settle a i=u:3,w=u:1 -> OK again
		settle a i=u:2,w=u:1 -> not held
		look i=u -> 5
		hold b i=u:3 -> OK 2
		denial i=u:3 -> 1s 1s
		denial i=u:6 -> never
		hold b i=u:3 back -> other
		settle b i=u:1 -> OK
		settle b i=u:3 -> not held
		look i=u -> 5`},
	{"the cap of a settlement", false, `
		hold a c=u:10,w=u:10,g=u:1,i=u:1 -> OK 90 90 9 4
		settle a c=u:1000000000000000000,w=u:1000000000000000000,g=u:1000000000000000000,i=u:1000000000000000000 -> OK capped
		settle a c=u:1000000000000000000,w=u:1000000000000000000,g=u:1000000000000000000,i=u:1000000000000000000 -> OK again
		look c=u -> 85
		reset w=u,g=u
		look w=u,g=u -> 100 10
		hold b c=u:10 -> OK 75
		extend b c=u:10 -> OK 65
		settle b c=u:24 -> OK
		look c=u -> 61
		hold d c=u:0 -> OK 61
		settle d c=u:6 -> OK capped
		look c=u -> 56`},
	{"reset", false, `
		hold a w=u:60,g=u:6,i=u:3,f=u:50 -> OK 40 4 2 50
		hold c w=v:60 -> OK 40
		reset w=u,g=u,i=u
		look w=u,g=u,i=u,f=u,w=v -> 100 10 5 50 40
		hold b w=u:50,g=u:5,i=u:5 -> OK 50 5 0
		release a w=u:0,g=u:0,i=u:0,f=u:0 -> not held
		settle a w=u:0,g=u:0,i=u:0,f=u:0 -> not held
		extend a w=u:0,g=u:0,i=u:0,f=u:0 -> not held
		look w=u,g=u,f=u -> 50 5 50
		release b w=u:0,g=u:0,i=u:0 -> OK
		look w=u,g=u,i=u -> 100 10 5
		release c w=v:0 -> OK
		look w=v -> 100`},
	{"a rule is lost by a reload", false, `
		hold a w=u:5,g=u:5 -> OK 95 5
		hold b g=u:1 -> OK 4
		reload 1
		settle a w=u:3,g=u:3 -> OK
		settle b g=u:1 -> not held
		reload 0
		look w=u,g=u -> 97 4
		settle b g=u:0 -> OK
		look w=u,g=u -> 97 5`},
	{"a rule is new by a reload", false, `
		reload 1
		hold a w=u:5,g=u:5 -> OK 95 -
		reload 0
		settle a w=u:3,g=u:3 -> not held
		look w=u,g=u -> 95 10`},
	{"a rule counts in another way after a reload", false, `
		hold a g=u:5,w=u:1 -> OK 5 99
		reload 2
		settle a g=u:5,w=u:1 -> not held
		extend a g=u:5,w=u:1 -> not held
		look w=u -> 99`},
	{"weights", false, `
		hold a t=u+input=10 -> OK 90
		extend a t=u+output=2 -> OK 80
		settle a t=v+input=1 -> not held
		settle a t=u+input=4+output=2 -> OK
		settle a t=u+input=4+output=2 -> OK again
		settle a t=u+input=4+output=3 -> not held
		look t=u -> 86`},
	{"counts of a rule that is absent for a load", false, `
		hold a g=u:5 -> OK 5
		reload 1
		reload 0
		look g=u -> 5
		release a g=u:0 -> OK
		look g=u -> 10`},
	{"under Config.Shadow", true, `
		hold a w=u:101,g=u:1 -> OK 0 10
		settle a w=u:101,g=u:1 -> OK
		extend a w=u:1,g=u:1 -> OK - -
		release a w=u:0,g=u:0 -> OK
		settle a none=u:1 -> OK
		look w=u,g=u -> 100 10
		hold a w=u:1,g=u:1 -> OK 99 9
		settle a w=u:2,g=u:2 -> OK
		look w=u,g=u -> 98 8`},
}

// meaningRules are the rules of meanings, and the same without g. Buckets give no unit back while a test runs.
var meaningRules = []string{`
domain: d
descriptors:
- {key: w, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: f, rate_limit: {unit: year, requests_per_unit: 100, algorithm: fixed-window}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 100, max_debt: 5}}
- {key: i, rate_limit: {unit: year, requests_per_unit: 5, algorithm: in-flight}}
- {key: p, value: x*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: sw, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: sg, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10, algorithm: gcra}}
- {key: sz, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: sb, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0, algorithm: gcra}}
- {key: z, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
- {key: t, rate_limit: {unit: year, requests_per_unit: 100, weights: {input: 1, output: 5}}}
`, "- {key: g, rate_limit: {unit: year, requests_per_unit: 10, algorithm: token-bucket}}\n"}

func TestHolds_Meaning(t *testing.T) {
	sets := []*rules.Set{load(t, meaningRules[0]+meaningRules[1]), load(t, meaningRules[0]), load(t, meaningRules[0]+strings.Replace(meaningRules[1], "token-bucket", "gcra", 1))}
	run := func(t *testing.T, name string, shadow bool, lines string, c rules.Config, wait func()) {
		c.Shadow = shadow
		e, err := rules.New(sets[0], c)
		require.NoError(t, err)
		for line := range strings.Lines(strings.TrimSpace(lines)) {
			call, want, _ := strings.Cut(strings.TrimSpace(line), " -> ")
			words := strings.Fields(call)
			switch words[0] {
			case "wait":
				wait()
			case "reload":
				n, err := strconv.Atoi(words[1])
				require.NoError(t, err)
				require.NoError(t, e.Swap(sets[n]))
			default:
				require.Equal(t, want, meaningCall(t, e, words), "%s: %s", name, call)
			}
		}
	}
	for _, row := range meanings {
		t.Run(row.name+" in memory", func(t *testing.T) {
			clock := sluice.NewManualClock(time.Unix(1_700_000_000, 0))
			run(t, row.name, row.shadow, row.lines, rules.Config{Clock: clock}, func() { clock.Advance(time.Millisecond) })
		})
	}
	eachServer(t, func(t *testing.T, s *redistest.Server) {
		for i, row := range meanings {
			t.Run(row.name+" in Redis", func(t *testing.T) {
				var c Config
				c.Prefix = fmt.Sprintf("m%d", i)
				run(t, row.name, row.shadow, row.lines, rules.Config{Store: newStore(t, s.Addr, c)}, func() { time.Sleep(2 * time.Millisecond) })
			})
		}
	})
}

// meaningCall makes a call of a line, and returns its outcome.
func meaningCall(t *testing.T, e *rules.Engine, words []string) string {
	var resp rules.Response
	switch words[0] {
	case "reset":
		require.NoError(t, e.Reset(&meaningHold(t, "", words[1]).Request))
		return ""
	case "series":
		for _, s := range e.Series() {
			if s.Path == "d."+words[1] {
				return fmt.Sprint(s.Total, " ", s.Over, " ", s.Estimated, " ", s.Settled)
			}
		}
		t.Fatal(words)
	case "denial":
		h := meaningHold(t, "", words[1])
		require.NoError(t, e.Decide(&h.Request, &resp))
		require.Equal(t, rules.OverLimit, resp.Code)
		if resp.Statuses[0].RetryAfter == sluice.Never {
			return "never"
		}
		return fmt.Sprint(resp.Statuses[0].RetryAfter, " ", resp.Statuses[0].ResetAfter)
	case "look":
		h := meaningHold(t, "", words[1])
		require.NoError(t, e.Decide(&h.Request, &resp))
		return strings.TrimSpace(remaining(&resp))
	}
	h := meaningHold(t, words[1], words[2])
	for _, option := range words[3:] {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "back":
			h.GiveBack = true
		case "step":
			h.Step = value
		case "ttl":
			var err error
			h.TTL, err = time.ParseDuration(value)
			require.NoError(t, err)
		}
	}
	made := map[string]func() error{
		"hold": func() error { return e.Hold(h, &resp) }, "extend": func() error { return e.Extend(h, &resp) },
		"settle": func() error { return e.Settle(h) }, "release": func() error { return e.Release(h) },
	}[words[0]]()
	for err, text := range map[error]string{rules.ErrNotHeld: "not held", rules.ErrOtherHold: "other", rules.ErrEndedHold: "ended"} {
		if errors.Is(made, err) {
			return text
		}
	}
	require.NoError(t, made)
	out := "OK"
	if len(resp.Statuses) > 0 {
		out = resp.Code.String()
	}
	if h.Again {
		out += " again"
	}
	if h.Capped {
		out += " capped"
	}
	return out + remaining(&resp)
}

func remaining(resp *rules.Response) (out string) {
	for i := range resp.Statuses {
		if out += " -"; resp.Statuses[i].Limited {
			out = out[:len(out)-1] + fmt.Sprint(resp.Statuses[i].Remaining)
		}
	}
	return out
}

// meaningHold is a hold of descriptors such as w=u:5, with 0 hits where there is no number; or t=u+input=3, with counts for weights.
func meaningHold(t *testing.T, id, text string) *rules.Hold {
	h := &rules.Hold{ID: id, TTL: time.Hour, Request: rules.Request{Domain: "d"}}
	if domain, rest, ok := strings.Cut(text, "/"); ok {
		h.Request.Domain, text = domain, rest
	}
	for _, one := range strings.Split(text, ",") {
		entry, number, _ := strings.Cut(one, ":")
		hits, err := strconv.ParseUint("0"+number, 10, 64)
		require.NoError(t, err)
		d := rules.Descriptor{Hits: &hits}
		for _, e := range strings.Split(entry, "+") {
			key, value, _ := strings.Cut(e, "=")
			d.Entries = append(d.Entries, rules.Entry{Key: key, Value: value})
		}
		if len(d.Entries) > 1 {
			d.Hits = nil
		}
		h.Request.Descriptors = append(h.Request.Descriptors, d)
	}
	return h
}
