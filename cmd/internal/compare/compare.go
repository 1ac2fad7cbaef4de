// Package compare lets algorithms decide the same requests, and measures the differences.
package compare

import (
	"math/big"
	"runtime"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// A Comparison decides requests under one limit by several algorithms. Its memory grows with the keys, and with the requests that they are admitted in ten
// periods.
type Comparison struct {
	engine  *replay.Replay
	limit   sluice.Limit
	rules   []replay.Rule
	spans   []time.Duration
	windows [][]window // by rule and span
	keys    []active
}

// active is the time in which a key has asked.
type active struct{ first, last int64 }

// Result is the result of a comparison.
type Result struct {
	Replay     replay.Result
	Limit      sluice.Limit
	Line       float64 // the rate times the time of each key, from its first request to its last
	Spans      []time.Duration
	Algorithms []Algorithm // by rule
}

// Algorithm is the result of one algorithm.
type Algorithm struct {
	Most  []int // that a key was admitted in any span, by span
	Bound []int // that the library promises
	Bytes float64
}

// New returns a comparison of algorithms under a limit. Windows have no burst.
func New(limit sluice.Limit, algorithms []sluice.Algorithm, clients *replay.Clients) (*Comparison, error) {
	c := &Comparison{limit: limit, spans: []time.Duration{max(1, limit.Period/10), limit.Period, times(limit.Period, 10)}}
	for _, a := range algorithms {
		rule := replay.Rule{Algorithm: a, Limit: limit}
		if a == sluice.SlidingWindow || a == sluice.SlidingLog || a == sluice.FixedWindow {
			rule.Limit.Burst = 0
		}
		c.rules = append(c.rules, rule)
		windows := make([]window, len(c.spans))
		for i, span := range c.spans {
			windows[i].span = int64(span)
		}
		c.windows = append(c.windows, windows)
	}
	var err error
	c.engine, err = replay.New(c.rules, clients)
	return c, err
}

func times(d time.Duration, n time.Duration) time.Duration {
	if d > (1<<63-1)/n {
		return 1<<63 - 1
	}
	return d * n
}

// Decide decides one request of a client. now never decreases.
func (c *Comparison) Decide(client int, now int64) {
	for len(c.keys) <= client {
		c.keys = append(c.keys, active{first: now})
	}
	c.keys[client].last = now
	for i, denied := range c.engine.Decide(client, now, nil) {
		if !denied {
			for j := range c.windows[i] {
				c.windows[i][j].admit(client, now)
			}
		}
	}
}

// Result sums up at least one request. It ends the comparison.
func (c *Comparison) Result(top int) (Result, error) {
	res := Result{Replay: c.engine.Result(top), Limit: c.limit, Spans: c.spans}
	sum := new(big.Int)
	for _, k := range c.keys {
		sum.Add(sum, big.NewInt(k.last-k.first))
	}
	res.Line, _ = new(big.Rat).SetFrac(sum.Mul(sum, big.NewInt(int64(c.limit.Rate))), big.NewInt(int64(c.limit.Period))).Float64()
	for i, rule := range c.rules {
		limiter, err := sluice.New(sluice.Config{Algorithm: rule.Algorithm, Limit: rule.Limit, MaxKeys: 1})
		if err != nil {
			return res, err
		}
		var a Algorithm
		for j, span := range c.spans {
			a.Most = append(a.Most, c.windows[i][j].most)
			a.Bound = append(a.Bound, limiter.WorstCase(span-1)) // of the times t to t+d, both included
		}
		if a.Bytes, err = bytesAKey(rule); err != nil {
			return res, err
		}
		res.Algorithms = append(res.Algorithms, a)
	}
	return res, nil
}

// window counts the requests that each key has been admitted in the last span.
type window struct {
	span int64
	keys []admitted
	most int
}

// admitted is a queue of instants.
type admitted struct {
	queue []instant // from head on
	head  int
	sum   int
}

type instant struct {
	at int64
	n  int
}

func (w *window) admit(client int, now int64) {
	for len(w.keys) <= client {
		w.keys = append(w.keys, admitted{})
	}
	a := &w.keys[client]
	for a.head < len(a.queue) && a.queue[a.head].at <= now-w.span {
		a.sum -= a.queue[a.head].n
		a.head++
	}
	if a.head > len(a.queue)/2 {
		a.queue = append(a.queue[:0], a.queue[a.head:]...)
		a.head = 0
	}
	if last := len(a.queue) - 1; last >= a.head && a.queue[last].at == now {
		a.queue[last].n++
	} else {
		a.queue = append(a.queue, instant{now, 1})
	}
	a.sum++
	w.most = max(w.most, a.sum)
}

// maxBytes bounds the limiter that memory is measured with.
const maxBytes = 64 << 20

// bytesAKey measures the bytes of a limiter for a key, with as many keys as fit.
func bytesAKey(rule replay.Rule) (float64, error) {
	keys := 20_000
	if rule.Algorithm == sluice.SlidingLog {
		keys = max(1, min(keys, maxBytes/(64+8*rule.Limit.Rate)))
	}
	limiter, err := sluice.New(sluice.Config{Algorithm: rule.Algorithm, Limit: rule.Limit, MaxKeys: -1, Clock: sluice.NewManualClock(time.Unix(1<<30, 0))})
	if err != nil {
		return 0, err
	}
	before := heap()
	for i := range keys {
		limiter.KeyUint64(uint64(i)).Allow()
	}
	after := heap()
	runtime.KeepAlive(limiter)
	return float64(after-before) / float64(keys), nil
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
