package recommend

import (
	"math/bits"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/spool"
)

// nginx is the meter of limit_req with nodelay, which is GCRA with numbers of its own: time is in milliseconds, the rate in
// thousandths of a request a second, rounded down, and burst is the number that may come beyond one request. So is the need of a client.
type nginx struct {
	rate   int64 // thousandths a second
	states []nginxState
}

type nginxState struct {
	last   int64 // ms; 0 before the first request
	excess int64 // thousandths
	most   int64
}

// maxNginx is the largest rate of limit_req that is recommended, a minute.
const maxNginx = 1e9

// nginxRate returns the rate of limit_req that is a limit's, or else the next higher one: a whole number a second or a minute.
// Above maxNginx it is 0.
func nginxRate(limit sluice.Limit) sluice.Limit {
	hi, lo := bits.Mul64(uint64(limit.Rate), uint64(time.Minute))
	if hi >= uint64(limit.Period) {
		return sluice.DenyAll
	}
	a, rest := bits.Div64(hi, lo, uint64(limit.Period))
	if rest > 0 {
		a++
	}
	if a > maxNginx {
		return sluice.DenyAll
	}
	if a%60 == 0 {
		return sluice.PerSecond(int(a / 60))
	}
	return sluice.PerMinute(int(a))
}

func newNginx(rate sluice.Limit, clients int) *nginx {
	return &nginx{int64(rate.Rate) * 1000 / int64(rate.Period/time.Second), make([]nginxState, clients)}
}

func (n *nginx) see(requests []spool.Request) {
	for _, q := range requests {
		s, ms := &n.states[q.Client], q.Now/int64(time.Millisecond)+1
		if s.last > 0 {
			hi, back := bits.Mul64(uint64(n.rate), uint64(ms-s.last))
			if hi > 0 || back/1000 > uint64(s.excess)+1000 {
				s.excess = 0
			} else {
				s.excess = max(0, s.excess-int64(back/1000)+1000)
			}
		}
		s.last = ms
		s.most = max(s.most, s.excess)
	}
}

func (n *nginx) needs(_ int, out []int64) {
	for i, s := range n.states {
		out[i] = (s.most + 999) / 1000
	}
}

// haproxy is the meter of http_req_rate, a sliding window with numbers of its own: time is in milliseconds, windows begin with a client's first
// request after a pause, and the part of the window before that counts is rounded down.
type haproxy struct {
	period int64 // ms
	states []windowState
}

func newHAProxy(period time.Duration, clients int) *haproxy {
	return &haproxy{period.Milliseconds(), make([]windowState, clients)}
}

func (h *haproxy) see(requests []spool.Request) {
	for _, q := range requests {
		// Here number is the beginning of the window in ms.
		s, ms := &h.states[q.Client], q.Now/int64(time.Millisecond)
		if s.most == 0 || ms-s.number >= 2*h.period {
			*s = windowState{number: ms &^ 1, most: s.most}
		} else if ms-s.number >= h.period {
			s.number, s.prev, s.cur = (s.number+h.period)&^1, s.cur, 0
		}
		s.cur++
		part := max(0, s.prev*(s.number+h.period-ms)/h.period) // a period is a day at most
		s.most = max(s.most, s.cur+part)
	}
}

func (h *haproxy) needs(_ int, out []int64) { mostOf(h.states, out) }
