package accesslog

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strings"
	"time"
)

// clfTime is the time of the Common Log Format, which JSON logs use as well.
const clfTime = "02/Jan/2006:15:04:05 -0700"

const (
	errTimeForm  = decisive("time is not RFC 3339, 2006-01-02 15:04:05 in UTC, 02/Jan/2006:15:04:05 -0700 or a Unix time")
	errTimeRange = decisive("time is before 1970 or after April 2262")
)

// isoTimes are RFC 3339 and its neighbours: no colon in the zone, its hours alone, or no zone, which
// is UTC; and a blank for the T.
var isoTimes = []string{time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05Z07", "2006-01-02T15:04:05"}

// maxTime is the last instant that fits into nanoseconds since 1970.
var maxTime = time.Unix(0, math.MaxInt64)

// nanos returns t in nanoseconds since 1970, or an error if it does not fit.
func nanos(t time.Time) (int64, error) {
	if t.Unix() < 0 || t.After(maxTime) {
		return 0, errTimeRange
	}
	return t.UnixNano(), nil
}

// ParseTime reads a time as it stands in logs, or a day, which begins at midnight in UTC.
func ParseTime(s string) (int64, error) {
	if t, err := time.Parse(time.DateOnly, s); err == nil {
		return nanos(t)
	}
	return parseTime(s)
}

// parseTime reads RFC 3339 and the forms of isoTimes with any fraction, the CLF form, or a Unix time as a decimal number. A part finer than a
// nanosecond is cut off.
func parseTime(s string) (int64, error) {
	switch {
	case len(s) > 4 && s[4] == '-':
		if len(s) > 10 && s[10] == ' ' {
			s = s[:10] + "T" + strings.TrimSuffix(strings.Replace(s[11:], " ", "", 1), "UTC")
		}
		for _, layout := range isoTimes {
			if n, err := parseLayout(layout, s); !errors.Is(err, errTimeForm) {
				return n, err
			}
		}
		return 0, errTimeForm
	case len(s) > 2 && s[2] == '/':
		if !strings.Contains(s, " ") {
			s += " +0000" // HAProxy has no zone
		}
		return parseLayout(clfTime, s)
	}
	return parseUnix(s)
}

// parseCLF reads the CLF form, without a fraction, in a fraction of the time that the package time takes; not
// all of it.
func parseCLF(b []byte) (int64, bool) {
	if len(b) != len(clfTime) || b[2] != '/' || b[6] != '/' || b[11] != ':' || b[14] != ':' || b[17] != ':' || b[20] != ' ' {
		return 0, false
	}
	day, ok1 := number(b[0:2])
	year, ok2 := number(b[7:11])
	hour, ok3 := number(b[12:14])
	minute, ok4 := number(b[15:17])
	second, ok5 := number(b[18:20])
	zone, ok6 := number(b[22:26])
	month := monthOf(b[3:6])
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6) || month == 0 || day < 1 || day > 28 || year < 1971 || year > 2261 ||
		hour > 23 || minute > 59 || second > 59 || zone > 1400 || zone%100 > 59 || b[21] != '+' && b[21] != '-' {
		return 0, false
	}
	at := time.Date(year, month, day, hour, minute, second, 0, time.UTC).Unix()
	offset := int64(zone/100*3600 + zone%100*60)
	if b[21] == '-' {
		offset = -offset
	}
	return (at - offset) * int64(time.Second), true
}

// monthOf reads the short name of a month; 0 if it is none.
func monthOf(name []byte) time.Month {
	switch string(name) {
	case "Jan":
		return time.January
	case "Feb":
		return time.February
	case "Mar":
		return time.March
	case "Apr":
		return time.April
	case "May":
		return time.May
	case "Jun":
		return time.June
	case "Jul":
		return time.July
	case "Aug":
		return time.August
	case "Sep":
		return time.September
	case "Oct":
		return time.October
	case "Nov":
		return time.November
	case "Dec":
		return time.December
	}
	return 0
}

func number(b []byte) (n int, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

func parseLayout(layout, s string) (int64, error) {
	t, err := time.Parse(layout, s)
	if err != nil {
		return 0, errTimeForm
	}
	return nanos(t)
}

// unixForm is a decimal number as JSON writes it: its sign, the rest, and the digits of the exponent.
var unixForm = regexp.MustCompile(`^(-?)(\d+(?:\.\d+)?(?:[eE][+-]?0*(\d+))?)$`)

// maxUnix bounds the length of a number: no time needs a longer one.
const maxUnix = 128

// parseUnix reads a count of seconds, milliseconds, microseconds or nanoseconds
// since 1970. The unit is the coarsest in which the number still lies before
// April 2262: only times in the first months of 1970 could be misread, and every
// clock since the 1980s reads right in all four. A float64 has too few digits for a
// time of today in nanoseconds.
func parseUnix(s string) (int64, error) {
	if len(s) > maxUnix {
		return 0, errTimeForm
	}
	m := unixForm.FindStringSubmatch(s)
	switch {
	case m == nil:
		return 0, errTimeForm
	case m[1] == "-", len(m[3]) > 2:
		return 0, errTimeRange
	}
	number, _ := new(big.Rat).SetString(m[2])
	for _, unit := range []int64{1e9, 1e6, 1e3, 1} {
		at := new(big.Int).Mul(number.Num(), big.NewInt(unit))
		if at.Quo(at, number.Denom()); at.IsInt64() {
			return at.Int64(), nil
		}
	}
	return 0, errTimeRange
}

func allDigits[T string | []byte](s T) bool {
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
