package sample

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// start is when the log begins: a morning like any other.
var start = time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)

const length = 45 * time.Minute

const (
	firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
	safari  = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 Version/18.1 Safari/604.1"
	crawler = "ExampleBot/1.0 (+https://bot.example/)"
	script  = "python-requests/2.32.3"
	monitor = "uptime-check/3.1"
)

// request is one line of the log.
type request struct {
	at     time.Duration // since start
	client string
	method string
	path   string
	status int
	bytes  int
	agent  string
}

// traffic makes up requests. Everything comes from one seeded generator and
// whole numbers, so that every machine makes up the same log.
type traffic struct {
	rand     *rand.Rand
	requests []request
}

// Generate writes the log to w, uncompressed: the traffic of a small site in 45
// minutes, with addresses that are reserved for documentation.
func Generate(w io.Writer) error {
	t := &traffic{rand: rand.New(rand.NewPCG(2026, 3))}
	t.visitors()
	t.flashCrowd()
	t.crawler()
	t.uptimeCheck()
	t.bruteForce()
	t.minuteEdges()
	slices.SortStableFunc(t.requests, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	out := bufio.NewWriter(w)
	for _, r := range t.requests {
		fmt.Fprintf(out, "%s - - [%s] \"%s %s HTTP/1.1\" %d %d \"-\" \"%s\"\n", r.client,
			start.Add(r.at).Format("02/Jan/2006:15:04:05 -0700"), r.method, r.path, r.status, r.bytes, r.agent)
	}
	return out.Flush()
}

// add appends a request unless it would come after the end of the log.
func (t *traffic) add(r request) {
	if r.at < length {
		t.requests = append(t.requests, r)
	}
}

// between returns a whole number of seconds from low to high.
func (t *traffic) between(low, high int) time.Duration {
	return time.Duration(low+t.rand.IntN(high-low+1)) * time.Second
}

// page is a page view: the page, then the files that a browser fetches to show it.
func (t *traffic) page(at time.Duration, client, agent, path string, assets int) {
	t.add(request{at, client, "GET", path, 200, 4000 + t.rand.IntN(20000), agent})
	for range assets {
		name := fmt.Sprintf("/assets/%04x.js", t.rand.IntN(1<<16))
		t.add(request{at + t.between(0, 2), client, "GET", name, 200, 300 + t.rand.IntN(90000), agent})
	}
}

// visitors come for a few pages each and read them.
func (t *traffic) visitors() {
	for i := range 34 {
		client := fmt.Sprintf("192.0.2.%d", 10+7*i%200)
		if i%5 == 0 {
			client = fmt.Sprintf("2001:db8:%x::%x", 0x10+i, 1+t.rand.IntN(1<<12))
		}
		at := t.between(0, 40*60)
		for range 2 + t.rand.IntN(4) {
			t.page(at, client, firefox, fmt.Sprintf("/articles/%d", 100+t.rand.IntN(60)), 2+t.rand.IntN(5))
			at += t.between(15, 150)
		}
	}
}

// flashCrowd follows a link from somewhere large, all within minutes.
func (t *traffic) flashCrowd() {
	for i := range 32 {
		client := fmt.Sprintf("198.51.100.%d", 3+5*i)
		at := 25*time.Minute + time.Duration(t.rand.IntN(6))*t.between(0, 60)
		for range 1 + t.rand.IntN(3) {
			t.page(at, client, safari, "/articles/160", 6+t.rand.IntN(5))
			at += t.between(6, 45)
		}
	}
}

// crawler keeps to the pace that it was asked to keep to.
func (t *traffic) crawler() {
	for at := 3 * time.Second; at < length; at += 6 * time.Second {
		path := fmt.Sprintf("/articles/%d", 100+int(at/(6*time.Second))%60)
		t.add(request{at, "203.0.113.9", "GET", path, 200, 4000 + t.rand.IntN(20000), crawler})
	}
}

func (t *traffic) uptimeCheck() {
	for at := 20 * time.Second; at < length; at += 30 * time.Second {
		t.add(request{at, "2001:db8:ffff::2", "HEAD", "/healthz", 200, 0, monitor})
	}
}

// bruteForce tries passwords, first from one address, later from two.
func (t *traffic) bruteForce() {
	attack := func(client string, from, until, pause time.Duration) {
		for at := from; at < until; at += pause {
			t.add(request{at, client, "POST", "/login", 401, 512, script})
			if t.rand.IntN(3) == 0 {
				t.add(request{at, client, "GET", "/login", 200, 1830, script})
			}
		}
	}
	attack("203.0.113.66", 8*time.Minute, 11*time.Minute, time.Second)
	attack("203.0.113.66", 33*time.Minute, 35*time.Minute, time.Second)
	attack("203.0.113.67", 33*time.Minute+20*time.Second, 37*time.Minute, 2*time.Second)
}

// minuteEdges knows of limits that count by the minute: it asks at the end of one
// and at the start of the next, and is quiet for the rest.
func (t *traffic) minuteEdges() {
	for _, minute := range []time.Duration{15, 18, 21, 40, 43} {
		edge := minute * time.Minute
		for i := range 56 {
			at := edge - 3*time.Second + time.Duration(i)*6*time.Second/56
			path := fmt.Sprintf("/api/prices?page=%d", i+1)
			t.add(request{at.Truncate(time.Second), "2001:db8:bad::1", "GET", path, 200, 900 + t.rand.IntN(300), script})
		}
	}
}
