package recommend

import (
	"fmt"
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

// Recommend looks for limits. The log must have a request.
func (l *Log) Recommend(c Config) (Result, error) {
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
	windows, err := l.measureAll(&res, rates)
	if err != nil {
		return res, err
	}
	if err := res.choose(windows); err != nil {
		return res, err
	}
	if err := l.measureProxies(&res); err != nil {
		return res, err
	}
	res.trim()
	var rules []replay.Rule
	for _, choice := range res.Choices {
		if choice.Refused == "" {
			rules = append(rules, choice.Rule)
		}
	}
	denied, err := l.deniedBy(rules)
	if err != nil {
		return res, err
	}
	res.Evidence, err = l.replay(rules, denied, c.Top, c.Sparklines)
	return res, err
}

// deniedBy finds the clients that each rule denies anything: a rule denies who needs more than its limit. Rules of one meter and limit, as
// those of buckets are, share a measurement.
func (l *Log) deniedBy(rules []replay.Rule) ([][]bool, error) {
	denied := make([][]bool, len(rules))
	var makers []func() meter
	var firsts []int // of the rules that are measured
	for i, r := range rules {
		if firstAlike(rules, i) == i {
			makers, firsts = append(makers, l.meterOf(r.Algorithm, r.Limit)), append(firsts, i)
		}
	}
	err := l.measure(makers, func(n int, needs []int64) {
		over := make([]bool, len(needs))
		for client, need := range needs {
			over[client] = need > int64(rules[firsts[n]].Limit.Capacity())
		}
		denied[firsts[n]] = over
	})
	for i := range rules {
		denied[i] = denied[firstAlike(rules, i)]
	}
	return denied, err
}

// firstAlike is the first rule that denies the same clients as the i-th, for having the same limit and meter.
func firstAlike(rules []replay.Rule, i int) int {
	return slices.IndexFunc(rules, func(o replay.Rule) bool {
		return o.Limit == rules[i].Limit && metered(o.Algorithm) == metered(rules[i].Algorithm)
	})
}

// metered is the algorithm whose meter serves another one, too: GCRA for all buckets.
func metered(algorithm sluice.Algorithm) sluice.Algorithm {
	switch algorithm {
	case sluice.FixedWindow, sluice.SlidingWindow, sluice.SlidingLog:
		return algorithm
	}
	return sluice.GCRA
}

// meterOf returns a meter of the limit that a client needs of an algorithm: of the burst at limit's rate, or of the number in windows of
// limit's period.
func (l *Log) meterOf(algorithm sluice.Algorithm, limit sluice.Limit) func() meter {
	clients := l.Clients.Len()
	switch metered(algorithm) {
	case sluice.FixedWindow:
		return func() meter { return newFixedWindow(limit.Period, clients) }
	case sluice.SlidingWindow:
		return func() meter { return newSlidingWindow(limit.Period, clients) }
	case sluice.SlidingLog:
		return l.slidingLog(limit.Period)
	}
	return func() meter { return newBucket(limit, clients) }
}

// measureAll fills in the peaks and the frontier, and returns the limits of windows for the goal.
func (l *Log) measureAll(res *Result, rates []sluice.Limit) (windows map[sluice.Algorithm]int64, err error) {
	var makers []func() meter
	var use []func(needs []int64, largest int)
	measure := func(maker func() meter, then func(needs []int64, largest int)) {
		makers, use = append(makers, maker), append(use, then)
	}
	res.Peaks = make([]Peak, len(Spans))
	for i, span := range Spans {
		measure(l.slidingLog(span), func(needs []int64, largest int) {
			res.Peaks[i] = Peak{span, percentile(needs, 500), percentile(needs, 900), percentile(needs, 990), percentile(needs, 999),
				needs[len(needs)-1], l.Clients.Name(largest), tail(needs)}
		})
	}
	res.Frontier = make([]Point, len(rates))
	for i, rate := range rates {
		res.Frontier[i].Rate = rate
		measure(l.meterOf(sluice.GCRA, rate), func(needs []int64, _ int) {
			for _, column := range res.columnsAndGoal() {
				burst := enough(needs, column.Denied)
				if burst == none {
					burst = 0
				}
				res.Frontier[i].Bursts = append(res.Frontier[i].Bursts, burst)
			}
		})
	}
	windows = map[sluice.Algorithm]int64{}
	for _, algorithm := range []sluice.Algorithm{sluice.FixedWindow, sluice.SlidingWindow, sluice.SlidingLog} {
		measure(l.meterOf(algorithm, sluice.Per(1, res.Per)), func(needs []int64, _ int) { windows[algorithm] = enough(needs, res.DeniedClients) })
	}
	err = l.measure(makers, func(i int, needs []int64) {
		largest := ascending(needs)
		use[i](needs, largest)
	})
	return windows, err
}

// columnsAndGoal is the columns, with the goal behind them.
func (r *Result) columnsAndGoal() []Column {
	return append(slices.Clip(r.Columns), Column{r.Denied, r.DeniedClients})
}

// choose recommends a limit for each algorithm.
func (r *Result) choose(windows map[sluice.Algorithm]int64) error {
	best, least := sluice.Limit{}, 0
	for _, p := range r.Frontier {
		burst := p.Bursts[len(r.Columns)]
		if burst == 0 {
			continue
		}
		limit := p.Rate.WithBurst(int(burst))
		most, err := worstCase(sluice.GCRA, limit, r.Per)
		// Of rates that admit as much the highest is the last one.
		if err == nil && (best == sluice.Limit{} || most <= least) {
			best, least = limit, most
		}
	}
	if best == (sluice.Limit{}) {
		return fmt.Errorf("at %s no burst that a limiter takes is enough: want a higher --rate", rateText(r.Frontier[0].Rate))
	}
	r.Bucket = best
	for _, algorithm := range r.Algorithms {
		limit := best
		if need, window := windows[algorithm]; window {
			limit = sluice.Per(int(min(need, maxInt)), r.Per)
		}
		choice := Choice{Rule: replay.Rule{Algorithm: algorithm, Limit: limit}}
		var err error
		if choice.Most, err = worstCase(algorithm, limit, r.Per); err != nil {
			choice.Refused = err.Error()
		}
		r.Choices = append(r.Choices, choice)
	}
	return nil
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

// measureProxies finds the limits for the goal of programs that count in ways of their own.
func (l *Log) measureProxies(res *Result) error {
	clients := l.Clients.Len()
	targets := []*Proxy{&res.HAProxy}
	makers := []func() meter{func() meter { return newHAProxy(res.Per, clients) }}
	res.HAProxy.Rate = sluice.Per(1, res.Per)
	if rate := nginxRate(res.Bucket); rate != sluice.DenyAll {
		res.Nginx.Rate = rate
		targets = append(targets, &res.Nginx)
		makers = append(makers, func() meter { return newNginx(rate, clients) })
	}
	return l.measure(makers, func(i int, needs []int64) {
		ascending(needs)
		targets[i].Need = enough(needs, res.DeniedClients)
	})
}

// trim drops the goal's column, which one of the others has too, and the rates at the end that need what the one before does, down to the one
// that is recommended.
func (r *Result) trim() {
	for i := range r.Frontier {
		r.Frontier[i].Bursts = r.Frontier[i].Bursts[:len(r.Columns)]
	}
	for n := len(r.Frontier); n > 1 && r.Frontier[n-1].Rate != r.Bucket.WithBurst(0) && slices.Equal(r.Frontier[n-1].Bursts, r.Frontier[n-2].Bursts); n-- {
		r.Frontier = r.Frontier[:n-1]
	}
}

// rateText is a rate without its burst.
func rateText(limit sluice.Limit) string { return limit.WithBurst(0).String() }
