package limittest

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
)

// A Limiter decides on calls at times that it is told, as a Model does.
type Limiter interface {
	// Take charges cost to key at now, in Unix nanoseconds, and reports the decision.
	Take(now int64, key string, cost int) sluice.Decision
}

// A Model is an algorithm as it is defined: exact numbers of any size, nothing rounded and no key ever
// forgotten, so that it is slow, and its memory grows with its keys. The limiters of this library are tested against these
// models. It is safe for concurrent use, and must be made by NewModel.
//
// Numbers of its decisions are found by searching over what the definition admits, in some 100 steps: a Take takes 10 to 100 us.
type Model struct{ oracle *oracle.Model }

// NewModel returns the model of an algorithm and limit, with a configuration's Offset, BlockFor and CountDenied. Of the
// other fields, Shadow, Soft and TopDenied must be zero, and the rest does not matter. A calendar's windows are those of
// the dates that clocks show, so that a model must not be of a zone and time in which clocks are set back over midnight. The error is a
// *sluice.ConfigError, of what sluice.New refuses, too.
func NewModel(c sluice.Config) (*Model, error) {
	switch {
	case c.Shadow:
		return nil, &sluice.ConfigError{Field: "Shadow", Reason: "true, but a model knows no shadow mode; want false"}
	case c.Soft != 0:
		return nil, &sluice.ConfigError{Field: "Soft", Reason: "is set, but a model has no soft units; want 0, and them in the Burst"}
	case c.TopDenied != 0:
		return nil, &sluice.ConfigError{Field: "TopDenied", Reason: "is set, but a model counts no denials; want 0"}
	}
	clock := sluice.NewManualClock(time.Time{})
	if _, err := sluice.New(sluice.Config{
		Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset,
		BlockFor: c.BlockFor, CountDenied: c.CountDenied, Clock: clock, MaxKeys: 1,
	}); err != nil {
		return nil, err
	}
	o := oracle.Config{
		Algorithm:   algorithms[c.Algorithm],
		Rate:        int64(c.Limit.Rate),
		Burst:       int64(max(c.Limit.Burst, 0)), // AtOnce has a mark there
		Period:      int64(c.Limit.Period),
		Interval:    c.Algorithm == sluice.TokenBucketInterval,
		FirstCharge: c.Algorithm == sluice.FixedWindowFirstCharge,
		Offset:      int64(c.Offset),
		Grid:        true, // as WorstCase has it
		BlockFor:    int64(c.BlockFor),
		CountDenied: c.CountDenied,
	}
	if c.Limit.Rate == math.MaxInt {
		o.Rate = math.MaxInt64
	}
	if dates := c.Limit.Calendar(); dates != (sluice.Calendar{}) {
		zone, err := time.LoadLocation(dates.Zone)
		if err != nil {
			return nil, err // which New has loaded
		}
		o.Calendar = &oracle.Calendar{Zone: zone, Begins: begins(dates)}
	}
	return &Model{oracle.New(o)}, nil
}

var algorithms = map[sluice.Algorithm]oracle.Algorithm{
	sluice.GCRA:          oracle.GCRA,
	sluice.TokenBucket:   oracle.TokenBucket,
	sluice.LeakyBucket:   oracle.LeakyBucket,
	sluice.SlidingWindow: oracle.SlidingWindow,
	sluice.SlidingLog:    oracle.SlidingLog,
	sluice.FixedWindow:   oracle.FixedWindow,
	sluice.InFlight:      oracle.InFlight,

	sluice.TokenBucketInterval:    oracle.TokenBucket,
	sluice.FixedWindowFirstCharge: oracle.FixedWindow,
}

// begins returns whether a window of a calendar begins on a date.
func begins(c sluice.Calendar) func(date time.Time) bool {
	return func(date time.Time) bool {
		switch c.Unit {
		case sluice.CalendarWeek:
			return (int(date.Weekday())+6)%7+1 == c.Day
		case sluice.CalendarMonth:
			return date.Day() == c.Day
		case sluice.CalendarQuarter:
			return date.Day() == c.Day && (date.Month()-c.Month+12)%3 == 0
		case sluice.CalendarYear:
			return date.Day() == c.Day && date.Month() == c.Month
		}
		return true
	}
}

// Take implements Limiter. It answers like Key.TakeAt of a limiter with this configuration and room for all keys.
// A now before 1970 counts as 1970, and one before the key's newest charge is judged no more kindly than at that.
func (m *Model) Take(now int64, key string, cost int) sluice.Decision {
	return decision(m.oracle.Take(key, now, int64(cost)))
}

// Peek is Take without the charge, like Key.PeekAt.
func (m *Model) Peek(now int64, key string, cost int) sluice.Decision {
	return decision(m.oracle.Peek(key, now, int64(cost)))
}

// Refund gives back up to cost units of key at now, as Key.Refund does.
func (m *Model) Refund(now int64, key string, cost int) { m.oracle.Refund(key, now, int64(cost)) }

// Reset makes key as if it had never been charged.
func (m *Model) Reset(key string) { m.oracle.Reset(key) }

// WorstCase is the most that a key is admitted in any closed span [t, t+d]: Limiter.WorstCase, found from
// the definition; math.MaxInt if it is no less, and under InFlight.
func (m *Model) WorstCase(d time.Duration) int {
	if most := m.oracle.WorstCase(int64(d)); most.IsInt64() {
		return int(min(most.Int64(), math.MaxInt))
	}
	return math.MaxInt
}

// decision narrows a model's decision to the int of this platform.
func decision(d oracle.Decision) sluice.Decision {
	return sluice.Decision{
		Allowed:    d.Allowed,
		Limit:      int(min(d.Limit, math.MaxInt)),
		Remaining:  int(min(d.Remaining, math.MaxInt)),
		RetryAfter: time.Duration(d.RetryAfter),
		ResetAfter: time.Duration(d.ResetAfter),
	}
}
