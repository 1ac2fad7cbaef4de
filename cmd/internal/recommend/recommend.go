package recommend

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// Config is the question to a log.
type Config struct {
	// Denied is the share of clients that a recommended limit may deny anything.
	Denied Share
	// Per is the period of windows. Of the rates of buckets the one is recommended under which a client is admitted the least in any Per.
	// CheckPeriod accepts it.
	Per time.Duration
	// Rate is the rate of buckets, one that CheckPeriod accepts the period of; the zero Limit for one of Rates.
	Rate sluice.Limit
	// Algorithms are those to recommend a limit of.
	Algorithms []sluice.Algorithm
	// Key is the parts of the log's clients, if they are keys of another kind; nil if not.
	Key []string
	// IPv6Prefix is the prefix of the log's clients.
	IPv6Prefix int
	// Top is how many clients that are denied the most are listed.
	Top int
	// Sparklines asks for Client.OverTime of these.
	Sparklines bool
}

// The periods that limits are recommended in, whole milliseconds: all programs can tell them.
const (
	MinPer = 10 * time.Millisecond
	MaxPer = 24 * time.Hour
)

// CheckLimit returns the mistake in a limit whose period limits are recommended in, or compared.
func CheckLimit(l sluice.Limit) error {
	if l.Calendar() != (sluice.Calendar{}) {
		return errors.New("its windows are by a calendar, which only fixed windows follow: want a count per time, as in 60/m")
	}
	return CheckPeriod(l.Period)
}

// CheckPeriod returns the mistake in a period of limits.
func CheckPeriod(d time.Duration) error {
	if d < MinPer || d > MaxPer || d%time.Millisecond != 0 {
		return fmt.Errorf("%v is no period to recommend a limit in: want whole milliseconds, from 10ms to 24h", d)
	}
	return nil
}

// Spans are the times that peaks are looked for in.
var Spans = []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}

// Rates are the rates of the frontier, ascending.
var Rates = ladder()

func ladder() (rates []sluice.Limit) {
	for _, n := range []int{1, 2, 3, 5, 10, 20, 30} {
		rates = append(rates, sluice.PerHour(n))
	}
	for _, n := range []int{1, 2, 3, 5, 10, 20, 30} {
		rates = append(rates, sluice.PerMinute(n))
	}
	for unit := 1; unit <= 100_000; unit *= 10 {
		for _, n := range []int{1, 2, 3, 5} {
			rates = append(rates, sluice.PerSecond(n*unit))
		}
	}
	return append(rates, sluice.PerSecond(1_000_000))
}

// columns are the shares of clients that a frontier may deny something.
var columns = []Share{0, percent / 10, percent}

// Result has the limits that a log asks for.
type Result struct {
	Config
	DeniedClients int // at most so many are the goal
	Peaks         []Peak
	Columns       []Column
	Frontier      []Point      // by rate, ascending
	Bucket        sluice.Limit // of GCRA, the token bucket and the leaky bucket
	Choices       []Choice
	Nginx         Proxy // limit_req for the goal: its rate, and its own burst
	HAProxy       Proxy // http_req_rate for the goal, in Per
	// Evidence is the log under the rules of Choices that are not refused, in order.
	Evidence replay.Result
}

// Peak is the most requests of clients in any time of a length, without its beginning.
type Peak struct {
	Span                      time.Duration
	P50, P90, P99, P999, Most int64 // of clients in a hundred, or in a thousand; and of all
	Client                    string
	// Tail says how many clients have had so many requests or more, for a few numbers of requests, ascending.
	Tail []Tail
}

// Tail is clients that have had so many requests in a time, or more.
type Tail struct {
	Requests int64
	Clients  int
}

// Column is a column of the frontier: so many clients may be denied something.
type Column struct {
	Share  Share
	Denied int
}

// Point is the frontier at a rate.
type Point struct {
	Rate   sluice.Limit
	Bursts []int64 // the smallest one for each column; 0 if there is none that a limiter would take
}

// Choice is the limit of an algorithm that is recommended.
type Choice struct {
	Rule    replay.Rule
	Most    int    // that a client is admitted in any Per
	Refused string // why there is none; empty if there is
}

// Proxy is a limit in the words of a program.
type Proxy struct {
	Rate sluice.Limit // zero if the program has no such rate
	Need int64
}

// gcPercent is how much of the memory may be garbage while limits are looked for: it is in a few large pieces, which are collected in no time.
const gcPercent = 25

// Recommend looks for limits. The log must have a request.
func (l *Log) Recommend(c Config) (Result, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	n := l.Clients.Len()
	res := Result{Config: c, DeniedClients: c.Denied.Of(n)}
	for _, share := range columns {
		res.Columns = append(res.Columns, Column{share, share.Of(n)})
	}
	if !slices.Contains(columns, c.Denied) {
		res.Columns = append(res.Columns, Column{c.Denied, res.DeniedClients})
	}
	rates := Rates
	if c.Rate != (sluice.Limit{}) {
		rates = []sluice.Limit{c.Rate}
	}
	found, err := l.measureAll(&res, rates)
	if err != nil {
		return res, err
	}
	denied, err := res.choose(found)
	if err != nil {
		return res, err
	}
	res.trim()
	return res, l.confirm(&res, denied)
}

// found is the limits for the goal.
type found struct {
	bucket  sluice.Limit // under which a client is admitted the least in any Config.Per; zero if there is none
	rate    int          // of bucket, its number in the frontier
	most    int          // that it admits
	over    []bool       // the clients that it denies anything
	windows map[sluice.Algorithm]window
}

// window is the number of requests in Config.Per, and the clients that have had more.
type window struct {
	need int64
	over []bool
}

// more finds the clients that need more.
func (n *needs) more(than int64) []bool {
	over := make([]bool, len(n.byClient))
	for client, need := range n.byClient {
		over[client] = need > than
	}
	return over
}

// ratesTogether is how many rates share a meter, and a pass: with more of them a pass would need more memory, with fewer the requests are read
// more often.
const ratesTogether = statesPerLine

// measureAll fills in the peaks, the frontier and what HAProxy needs, and returns the limits for the goal.
func (l *Log) measureAll(res *Result, rates []sluice.Limit) (found, error) {
	f := found{windows: map[sluice.Algorithm]window{}}
	res.Frontier = make([]Point, len(rates))
	passes := [][]measure{l.peaks(res), l.windows(res, f.windows)}
	for first := 0; first < len(rates); first += ratesTogether {
		group := rates[first:min(first+ratesTogether, len(rates))]
		m := measure{meter: func(old meter) meter { return newBuckets(group, l.Clients.Len(), old) }}
		for i := range group {
			m.uses = append(m.uses, func(n *needs) {
				res.Frontier[first+i] = newPoint(group[i], n, res.Columns)
				f.offer(first+i, group[i], n, res)
			})
		}
		passes = append(passes, []measure{m})
	}
	err := l.measure(passes)
	return f, err
}

// offer takes the limit for the goal at a rate of the frontier, if it is better. Of rates that admit as much it is the highest.
func (f *found) offer(i int, rate sluice.Limit, n *needs, res *Result) {
	burst := enough(n.ascending, res.DeniedClients)
	if burst == none {
		return
	}
	limit := rate.WithBurst(int(burst))
	most, err := worstCase(sluice.GCRA, limit, res.Per)
	if err == nil && (f.bucket == sluice.Limit{} || most < f.most || most == f.most && i > f.rate) {
		f.bucket, f.rate, f.most, f.over = limit, i, most, n.more(burst)
	}
}

func newPoint(rate sluice.Limit, n *needs, columns []Column) Point {
	p := Point{Rate: rate}
	for _, column := range columns {
		burst := enough(n.ascending, column.Denied)
		if burst == none {
			burst = 0
		}
		p.Bursts = append(p.Bursts, burst)
	}
	return p
}

func (l *Log) peaks(res *Result) (pass []measure) {
	res.Peaks = make([]Peak, len(Spans))
	for i, span := range Spans {
		pass = append(pass, measure{
			func(meter) meter { return newSlidingLog(span, l.Clients.Len(), &l.spool) },
			[]func(*needs){func(n *needs) { res.Peaks[i] = l.peak(span, n) }},
		})
	}
	return pass
}

func (l *Log) peak(span time.Duration, n *needs) Peak {
	most := n.ascending[len(n.ascending)-1]
	return Peak{
		Span: span,
		P50:  percentile(n.ascending, 500), P90: percentile(n.ascending, 900), P99: percentile(n.ascending, 990), P999: percentile(n.ascending, 999), Most: most,
		Client: l.Clients.Name(slices.Index(n.byClient, most)),
		Tail:   tail(n.ascending),
	}
}

// windows measures what counts in windows.
func (l *Log) windows(res *Result, windows map[sluice.Algorithm]window) []measure {
	clients := l.Clients.Len()
	of := func(algorithm sluice.Algorithm, make func() meter) measure {
		return measure{func(meter) meter { return make() }, []func(*needs){func(n *needs) {
			need := enough(n.ascending, res.DeniedClients)
			windows[algorithm] = window{need, n.more(need)}
		}}}
	}
	res.HAProxy.Rate = sluice.Per(1, res.Per)
	return []measure{
		of(sluice.FixedWindow, func() meter { return newFixedWindow(res.Per, clients) }),
		of(sluice.SlidingWindow, func() meter { return newSlidingWindow(res.Per, clients) }),
		of(sluice.SlidingLog, func() meter { return newSlidingLog(res.Per, clients, &l.spool) }),
		proxyNeed(&res.HAProxy, res.DeniedClients, func() meter { return newHAProxy(res.Per, clients) }),
	}
}

func proxyNeed(p *Proxy, denied int, make func() meter) measure {
	return measure{func(meter) meter { return make() }, []func(*needs){func(n *needs) { p.Need = enough(n.ascending, denied) }}}
}

// choose recommends a limit for each algorithm, and returns the clients that each of these that is not refused denies anything.
func (r *Result) choose(f found) (denied [][]bool, err error) {
	if f.bucket == (sluice.Limit{}) {
		return nil, fmt.Errorf("at %s no burst that a limiter takes is enough: want a higher --rate", rateText(r.Frontier[0].Rate))
	}
	r.Bucket = f.bucket
	for _, algorithm := range r.Algorithms {
		limit, over := f.bucket, f.over
		if w, ok := f.windows[algorithm]; ok {
			limit, over = sluice.Per(int(min(w.need, maxInt)), r.Per), w.over
		}
		choice := Choice{Rule: replay.Rule{Algorithm: algorithm, Limit: limit}}
		if choice.Most, err = worstCase(algorithm, limit, r.Per); err != nil {
			choice.Refused = err.Error()
		} else {
			denied = append(denied, over)
		}
		r.Choices = append(r.Choices, choice)
	}
	return denied, nil
}

// maxInt is less than the number for no limit.
const maxInt = int64(int(^uint(0)>>1) - 1)

// worstCase returns the most that a limiter admits in any span of d, or why there is no such limiter.
func worstCase(algorithm sluice.Algorithm, limit sluice.Limit, d time.Duration) (int, error) {
	limiter, err := sluice.New(sluice.Config{Algorithm: algorithm, Limit: limit, MaxKeys: 1})
	if err != nil {
		return 0, replay.Refusal(replay.Rule{Algorithm: algorithm, Limit: limit}, err)
	}
	return limiter.WorstCase(d), nil
}

// confirm replays the log under the recommended limits, and meanwhile finds the limit of nginx, which has rates of its own. denied says, for each
// limit that is not refused, which clients it denies anything.
func (l *Log) confirm(res *Result, denied [][]bool) error {
	var rules []replay.Rule
	for _, choice := range res.Choices {
		if choice.Refused == "" {
			rules = append(rules, choice.Rule)
		}
	}
	proxy := make(chan error, 1)
	go func() { proxy <- l.measureNginx(res) }()
	evidence, err := l.replay(rules, denied, res.Top, res.Sparklines)
	err = cmp.Or(<-proxy, err)
	res.Evidence = evidence
	return err
}

func (l *Log) measureNginx(res *Result) error {
	rate := nginxRate(res.Bucket)
	if rate == sluice.DenyAll {
		return nil
	}
	res.Nginx.Rate = rate
	return l.measure([][]measure{{proxyNeed(&res.Nginx, res.DeniedClients, func() meter { return newNginx(rate, l.Clients.Len()) })}})
}

// trim drops the rates at the end that need what the one before does, down to the one that is recommended.
func (r *Result) trim() {
	for n := len(r.Frontier); n > 1 && r.Frontier[n-1].Rate != r.Bucket.WithBurst(0) && slices.Equal(r.Frontier[n-1].Bursts, r.Frontier[n-2].Bursts); n-- {
		r.Frontier = r.Frontier[:n-1]
	}
}

// rateText is a rate without its burst.
func rateText(limit sluice.Limit) string { return limit.WithBurst(0).String() }
