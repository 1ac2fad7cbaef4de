package httplimit

import (
	"math"
	"math/bits"
	"net/http"
	"time"

	"github.com/sluice-go/sluice"
)

// A charge comes back by itself in time, and must not be given back on top of that:
// whoever keeps many requests open, and lets them succeed when they have long come
// back, would get as many units for nothing. So it is noted when it will have come back.

// StatusClientGone is the status that Config.Settle is told of where there is no response:
// the handler has returned without a word after the context of the request had ended. It
// is what nginx logs then, and no status of HTTP.
const StatusClientGone = 499

// serveAndSettle calls the handler and settles what the request costs, also if the
// handler panics. It does not recover, so that the panic goes on as it is.
func (h *handler) serveAndSettle(w http.ResponseWriter, r *http.Request, j *judgement) {
	j.noteDue()
	rec := &recorder{ResponseWriter: w}
	panicked := true
	defer func() {
		status := rec.status
		switch {
		case status != 0:
		case panicked:
			status = http.StatusInternalServerError
		case r.Context().Err() == nil:
			status = http.StatusOK
		}
		h.settle(j, r, status)
	}()
	h.next.ServeHTTP(rec.writer(), r)
	panicked = false
}

// noteDue notes when the charges will have come back, unless that has been done: what others
// charge in the meantime does not count.
func (j *judgement) noteDue() {
	for i := range j.entries {
		if e := &j.entries[i]; e.charged && e.policy.Remote == nil && e.due == 0 {
			e.due = due(&e.policy.conf, j.charges[i].Key)
		}
	}
}

// settle asks what the request finally costs, and makes it so. A status of 0 is none.
func (m *Judge) settle(j *judgement, r *http.Request, status int) {
	if status == 0 {
		status = StatusClientGone
	}
	final := m.config.Settle(r, status)
	if final < 0 {
		return
	}
	j.settle(final)
	if m.remotes {
		j.settleRemotes(r.Context(), final)
	}
}

// settle makes what each key of a Limiter is charged final. Charges for one key are one: what
// has not come back of them is to be given back once.
func (j *judgement) settle(final int) {
	for i := range j.entries {
		e, k := &j.entries[i], j.charges[i].Key
		if !e.charged || e.policy.Remote != nil || j.sameKey(i) < i {
			continue
		}
		cost, actual := j.total(i), int64(0)
		for _, c := range j.charges {
			if c.Key == k {
				actual = addUp(actual, final)
			}
		}
		if actual < cost {
			if n := min(cost-actual, outstanding(e, k)); n > 0 {
				k.Refund(int(min(n, math.MaxInt)))
			}
		}
		for n := actual - cost; n > 0; n -= math.MaxInt { // once, except on 32 bits
			k.Charge(int(min(n, math.MaxInt)))
		}
	}
}

// due returns when all that key has been charged so far will have come back, on the
// limiter's clock. For the counters of windows it is the end of the present window:
// in a later one, units of that one would be given back.
func due(c *sluice.Config, k sluice.Key) int64 {
	now := c.Clock.Now()
	wait := k.Peek(0).ResetAfter
	switch {
	case c.Algorithm == sluice.FixedWindow && c.Anchor == sluice.AnchorUnix,
		c.Algorithm == sluice.SlidingWindow,
		c.Algorithm == sluice.TokenBucket && c.Refill == sluice.RefillInterval:
		wait = min(wait, windowRest(now, k.Limit().Period, c.Offset))
	}
	return now + min(int64(wait), math.MaxInt64-now)
}

// outstanding returns how many of the units charged to k until the entry was judged
// have not come back by themselves, rounded up.
func outstanding(e *entry, k sluice.Key) int64 {
	c, l := &e.policy.conf, k.Limit()
	rest := e.due - c.Clock.Now()
	switch {
	case rest <= 0:
		return 0
	case l.Rate == 0 || !accrues(c):
		return math.MaxInt64
	}
	return int64(min(mulDivCeil(uint64(rest), uint64(l.Rate), uint64(l.Period)), math.MaxInt64))
}

// accrues reports whether the units of a limiter come back one by one.
func accrues(c *sluice.Config) bool {
	switch c.Algorithm {
	case sluice.FixedWindow, sluice.SlidingWindow, sluice.SlidingLog:
		return false
	}
	return c.Refill == sluice.RefillContinuous
}

// windowRest returns the time from now, in Unix nanoseconds, to the end of the window
// [k*period + offset, (k+1)*period + offset).
func windowRest(now int64, period, offset time.Duration) time.Duration {
	elapsed := (now%int64(period) - int64(offset)) % int64(period)
	if elapsed < 0 {
		elapsed += int64(period)
	}
	return period - time.Duration(elapsed)
}

// mulDivCeil returns a*b/d, rounded up, or math.MaxUint64 if that is less.
func mulDivCeil(a, b, d uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	lo, carry := bits.Add64(lo, d-1, 0)
	hi += carry // no overflow: the product is at most (2^64-1)^2
	if hi >= d {
		return math.MaxUint64
	}
	quo, _ := bits.Div64(hi, lo, d)
	return quo
}
