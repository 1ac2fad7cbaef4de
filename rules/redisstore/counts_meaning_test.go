package redisstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/rules"
)

// countMeanings are the rows of rules/MEANING.md about counts. A line of a row is a call and its outcome:
//
//	[DOMAIN/]DESCRIPTOR:HITS,... -> CODE REMAINING...
//
// HITS with a minus are given back. REMAINING with an x is of a status that is OVER_LIMIT.
var countMeanings = []struct {
	name, lines string
	config      rules.Config
}{
	{name: "denied hits", lines: `
		w=u:60 -> OK 40
		w=u:60 -> OVER_LIMIT 0x
		w=u:1 -> OVER_LIMIT 0x
		n=u:60 -> OK 40
		n=u:60 -> OVER_LIMIT 40x
		n=u:40 -> OK 0
		g=u:6 -> OK 4
		g=u:6 -> OVER_LIMIT 4x
		g=u:4 -> OK 0
		l=u:6 -> OK 4
		l=u:6 -> OVER_LIMIT 4x
		l=u:4 -> OK 0
		s=u:6 -> OK 4
		s=u:6 -> OVER_LIMIT 4x
		s=u:4 -> OK 0
		i=u:4 -> OK 1
		i=u:2 -> OVER_LIMIT 1x
		i=u:1 -> OK 0`},
	{name: "looks", lines: `
		w=u:0,n=u:0,g=u:0,l=u:0,s=u:0,i=u:0,z=u:0,y=u:0 -> OVER_LIMIT 100 100 10 10 10 5 0 0x
		w=u:100,n=u:100,g=u:10,l=u:10,s=u:10,i=u:5 -> OK 0 0 0 0 0 0
		w=u:0 -> OK 0
		n=u:0 -> OVER_LIMIT 0x
		g=u:0 -> OVER_LIMIT 0x
		l=u:0 -> OVER_LIMIT 0x
		s=u:0 -> OVER_LIMIT 0x
		i=u:0 -> OVER_LIMIT 0x
		w=u:1,n=u:1,g=u:1,l=u:1,s=u:1,i=u:1 -> OVER_LIMIT 0x 0x 0x 0x 0x 0x
		w=u:0,n=u:0,g=u:0,l=u:0,s=u:0,i=u:0 -> OVER_LIMIT 0x 0x 0x 0x 0x 0x`},
	{name: "limits of 0", lines: `
		z=u:1,y=u:1 -> OVER_LIMIT 0x 0x
		z=u:-1,y=u:-1 -> OK 0 0
		z=u:0,y=u:0 -> OVER_LIMIT 0 0x
		a/z=u:-1,w=u:5 -> OK 0 95
		a/y=u:-1,w=u:100 -> OVER_LIMIT 0 0x`},
	{name: "each by itself", lines: `
		w=u:5,g=u:11 -> OVER_LIMIT 95 10x
		g=u:11,w=u:5 -> OVER_LIMIT 10x 90
		w=u:0,g=u:0 -> OK 90 10
		w=u:50,w=u:50 -> OVER_LIMIT 40 0x
		g=u:6,g=u:6 -> OVER_LIMIT 4 4x`},
	{name: "all or none", lines: `
		a/w=u:5,g=u:11 -> OVER_LIMIT 100 10x
		a/w=u:0,g=u:0 -> OK 100 10
		a/w=u:101,g=u:5 -> OVER_LIMIT 0x 5
		a/w=u:0,g=u:0 -> OK 100 10
		a/w=u:60,w=u:60 -> OVER_LIMIT 100 0x
		a/w=u:0 -> OK 100
		a/g=u:6,g=u:6 -> OVER_LIMIT 4 10x
		a/g=u:0 -> OK 10
		a/w=u:5,g=u:5 -> OK 95 5`},
	{name: "all or none, shadow", lines: `
		a/sw=u:11,g=u:5 -> OK 0 5
		a/sw=u:0,g=u:0 -> OK 0 5
		a/sg=u:11,g=u:5 -> OK 10 0
		a/sg=u:0,g=u:0 -> OVER_LIMIT 10 0x
		a/sw=u:1,sg=u:1,g=u:1 -> OVER_LIMIT 0 10 0x
		a/sw=u:0,sg=u:0,g=u:0 -> OVER_LIMIT 0 10 0x`},
	{name: "only what is over", config: rules.Config{StopWhenOver: true}, lines: `
		w=u:5,g=u:11 -> OVER_LIMIT 100 10x
		w=u:0,g=u:0 -> OK 100 10
		w=u:60,w=u:60 -> OVER_LIMIT 40 0x
		w=u:0 -> OVER_LIMIT 0x
		g=u:6,g=u:6 -> OVER_LIMIT 4 4x
		g=u:0 -> OK 4
		w=u:101,g=u:5 -> OVER_LIMIT 0x 4x
		w=u:0,g=u:0 -> OVER_LIMIT 0x 4`},
	{name: "shadow", lines: `
		sw=u:11 -> OK 0
		sw=u:1 -> OK 0
		sg=u:11 -> OK 10
		sg=u:10 -> OK 0
		sg=u:1 -> OK 0`},
	{name: "Config.Shadow", config: rules.Config{Shadow: true}, lines: `
		w=u:101,g=u:11 -> OK 0x 10x
		w=u:0,g=u:0 -> OK 0x 10`},
	{name: "given back", lines: `
		w=u:10,n=u:10,g=u:10,l=u:10,s=u:10,i=u:5 -> OK 90 90 0 0 0 0
		w=u:-4,n=u:-4,g=u:-4,l=u:-4,s=u:-4,i=u:-4 -> OK 94 94 4 4 4 4
		w=u:-100,n=u:-100,g=u:-100,l=u:-100,s=u:-100,i=u:-100 -> OK 100 100 10 10 10 5
		w=u:0,n=u:0,g=u:0,l=u:0,s=u:0,i=u:0 -> OK 100 100 10 10 10 5`},
	{name: "what denied hits absorb", lines: `
		w=u:100 -> OK 0
		w=u:20 -> OVER_LIMIT 0x
		w=u:-20 -> OK 0
		w=u:0 -> OK 0
		n=u:100 -> OK 0
		n=u:20 -> OVER_LIMIT 0x
		n=u:-20 -> OK 0
		n=u:-20 -> OK 20
		g=u:10 -> OK 0
		g=u:2 -> OVER_LIMIT 0x
		g=u:-2 -> OK 0
		g=u:-2 -> OK 2
		s=u:10 -> OK 0
		s=u:2 -> OVER_LIMIT 0x
		s=u:-2 -> OK 0
		s=u:-2 -> OK 2`},
	{name: "two budgets", lines: `
		p=u:8 -> OK 7
		p=u:4 -> OK 3
		m=pool:0 -> OK 3
		p=u:4 -> OVER_LIMIT 3x
		p=u:3 -> OK 0
		p=u:1 -> OVER_LIMIT 0x
		p=u:0 -> OVER_LIMIT 0x
		p=u:-4 -> OK 0
		m=pool:0 -> OVER_LIMIT 0x
		p=u:0 -> OVER_LIMIT 0x`},
	{name: "two budgets, the same key twice", lines: `
		p=u:8,p=u:8 -> OVER_LIMIT 7 7x
		p=u:8,p=u:8 -> OVER_LIMIT 7x 7x
		m=pool:0 -> OK 5`},
}

// countRules are the rules of countMeanings, in a domain d and an atomic domain a.
const countRules = `
- {key: w, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: n, rate_limit: {unit: year, requests_per_unit: 100, count_denied: false}}
- {key: g, rate_limit: {unit: year, requests_per_unit: 10, algorithm: gcra}}
- {key: l, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding-log}}
- {key: s, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding-window}}
- {key: i, rate_limit: {unit: year, requests_per_unit: 5, algorithm: in-flight}}
- {key: z, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: y, rate_limit: {unit: year, requests_per_unit: 0, algorithm: leaky-bucket}}
- {key: sw, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: sg, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10, algorithm: gcra}}
- {key: p, rate_limit: {unit: year, requests_per_unit: 10, then: more}}
- {key: m, value: pool, rate_limit: {unit: year, requests_per_unit: 5, name: more}}
`

// TestCounts_Meaning runs the rows in memory and in Redis.
func TestCounts_Meaning(t *testing.T) {
	file := func(domain, settings string) rules.File {
		return rules.File{Name: domain, Data: []byte("domain: " + domain + "\n" + settings + "descriptors:" + countRules)}
	}
	set, err := rules.Load([]rules.File{file("d", ""), file("a", "sluice: {atomic: true}\n")}, rules.Options{})
	require.NoError(t, err)
	run := func(t *testing.T, lines string, c rules.Config) {
		e, err := rules.New(set, c)
		require.NoError(t, err)
		for line := range strings.Lines(strings.TrimSpace(lines)) {
			call, want, _ := strings.Cut(strings.TrimSpace(line), " -> ")
			require.Equal(t, want, countCall(t, e, call), call)
		}
	}
	for _, row := range countMeanings {
		t.Run(row.name+" in memory", func(t *testing.T) { run(t, row.lines, row.config) })
	}
	eachServer(t, func(t *testing.T, s *redistest.Server) {
		for i, row := range countMeanings {
			t.Run(row.name+" in Redis", func(t *testing.T) {
				var c Config
				c.Prefix = fmt.Sprintf("c%d", i)
				store := newStore(t, s.Addr, c)
				store.sentRefunds(t)
				row.config.Store = store
				run(t, row.lines, row.config)
			})
		}
	})
}

// countCall makes a call of a line, and returns its outcome.
func countCall(t *testing.T, e *rules.Engine, call string) string {
	req := &meaningHold(t, "", strings.ReplaceAll(call, ":-", ":")).Request
	_, descriptors, _ := strings.Cut("/"+call, "/")
	for i, one := range strings.Split(descriptors[strings.LastIndex(descriptors, "/")+1:], ",") {
		req.Descriptors[i].Refund = strings.Contains(one, ":-")
	}
	var resp rules.Response
	require.NoError(t, e.Decide(req, &resp))
	out := resp.Code.String()
	for i := range resp.Statuses {
		st := &resp.Statuses[i]
		out += fmt.Sprintf(" %d", st.Remaining)
		if st.Code == rules.OverLimit {
			out += "x"
		}
	}
	return out
}
