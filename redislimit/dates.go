package redislimit

import (
	"math"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/calendar"
)

// dated is the shape of FixedWindow by the calendar of a time zone. In a view, a is the units of the present window.
type dated struct {
	windows *calendar.Windows
	burst   int64
}

const datedLetter = 'd'

func newDated(c Config) (shape, error) {
	w, err := calendarOf(c.Limit)
	if err != nil {
		return nil, configErrorf("Limit", "%v", err)
	}
	burst := int64(c.Limit.Rate)
	return dated{w, burst}, countable(c, burst)
}

func calendarOf(l sluice.Limit) (*calendar.Windows, error) {
	c := l.Calendar()
	return calendar.New(calendar.Calendar{Unit: calendar.Unit(c.Unit), Zone: c.Zone, Month: c.Month, Day: c.Day})
}

// isDated reports whether a limit has a calendar.
func isDated(l sluice.Limit) bool { return l.Calendar() != (sluice.Calendar{}) }

// sameWindows reports whether two limits count in the same windows, if they have the same algorithm and offset.
func sameWindows(a, b sluice.Limit) bool {
	return a.Period == b.Period && a.Calendar() == b.Calendar()
}

// sameShape reports whether two shapes keep the same limit.
func sameShape(a, b shape) bool {
	x, ok := a.(dated)
	y, both := b.(dated)
	if ok && both {
		return x.burst == y.burst && x.windows.Calendar == y.windows.Calendar
	}
	return a == b
}

func (dated) letter() byte    { return datedLetter }
func (dated) script() *script { return calendarScript }

func (dated) keeps(state string) bool { return keeps(state, 'c', 21) }

// arguments has where windows begin, from the one before that of now to the one behind the next. now is 0 if Redis says the time: then it
// is this process's, and the script knows how to go on from there.
func (s dated) arguments(to []byte, now int64) []byte {
	if now == 0 {
		now = time.Now().UnixMicro()
	}
	number := s.number(now)
	begins := [4]int64{1: s.begin(number)}
	for before := number; before > 0 && begins[0] == 0; before-- { // a window without an instant begins with the next one
		if b := s.begin(before - 1); b < begins[1] {
			begins[0] = b
			break
		}
	}
	for i := 2; i < len(begins); i++ {
		for begins[i] <= begins[i-1] && begins[i] < exact-1 {
			number++
			begins[i] = s.begin(number)
		}
	}
	to = appendUint56(to, s.burst)
	for _, b := range begins {
		to = appendUint56(to, b)
	}
	return to
}

// number returns the number of the window of a time in us.
func (s dated) number(at int64) uint64 { return numberAt(s.windows, at) }

func numberAt(w *calendar.Windows, at int64) uint64 {
	return w.At(min(max(at, 0), math.MaxInt64/micro) * micro)
}

// begin returns when a window begins, in us, or the end of time.
func (s dated) begin(number uint64) int64 {
	return min(int64(s.windows.Start(number)/uint64(micro)), exact-1)
}

// left returns the time to the end of the window.
func (s dated) left(now int64) int64 { return s.begin(s.number(now)+1) - now }

func (dated) used(v view) int64 { return v.a }

func (s dated) free(v view) int64 { return max(0, s.burst-v.a) }

func (dated) charged(v view, units int64) view {
	v.a += units
	return v
}

func (s dated) wait(v view, _ int64) int64 { return s.left(v.now) }

func (dated) soonest(view, int64) int64 { return 0 }
func (s dated) open(v view) int64       { return s.left(v.now) }

func (s dated) reset(v view) int64 {
	if v.a == 0 {
		return 0
	}
	return s.left(v.now)
}

func (s dated) worst(d int64) uint64 { return times(s.windows.Touched(d), uint64(s.burst)) }

func (s dated) cycle() cycle {
	period := int64(s.windows.Longest()) / micro
	return cycle{period: period, margin: clocksApart, dates: s.windows.Calendar, windows: s.windows}
}

// windowsOf names the windows of a limit: the period, or the calendar.
func windowsOf(l sluice.Limit) string {
	if isDated(l) {
		l.Rate = 1
		return strconv.Quote(l.WithBurst(0).String())
	}
	return l.Period.String()
}
