package accesslog

import (
	"errors"
	"math"
	"strings"
	"time"
)

// clfTime is the time of the Common Log Format, which JSON logs use as well.
const clfTime = "02/Jan/2006:15:04:05 -0700"

const (
	errTimeForm  = decisive("time is not RFC 3339, 02/Jan/2006:15:04:05 -0700 or a Unix time")
	errTimeRange = decisive("time is before 1970 or after April 2262")
)

// isoTime is RFC 3339 without the colon in the zone, as Caddy writes it.
const isoTime = "2006-01-02T15:04:05Z0700"

// maxTime is the last instant that fits into nanoseconds since 1970.
var maxTime = time.Unix(0, math.MaxInt64)

// nanos returns t in nanoseconds since 1970, or an error if it does not fit.
func nanos(t time.Time) (int64, error) {
	if t.Unix() < 0 || t.After(maxTime) {
		return 0, errTimeRange
	}
	return t.UnixNano(), nil
}

// parseTime reads RFC 3339 with any fraction and with or without a colon in the
// zone, the CLF form, or a Unix time as a decimal number. What is finer than a
// nanosecond is cut off.
func parseTime(s string) (int64, error) {
	switch {
	case len(s) > 4 && s[4] == '-':
		if n, err := parseLayout(time.RFC3339, s); !errors.Is(err, errTimeForm) {
			return n, err
		}
		return parseLayout(isoTime, s)
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
	month := strings.Index("JanFebMarAprMayJunJulAugSepOctNovDec", string(b[3:6]))
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6) || month%3 != 0 || day < 1 || day > 28 || year < 1971 || year > 2261 ||
		hour > 23 || minute > 59 || second > 59 || zone > 1400 || zone%100 > 59 || b[21] != '+' && b[21] != '-' {
		return 0, false
	}
	at := time.Date(year, time.Month(month/3+1), day, hour, minute, second, 0, time.UTC).Unix()
	offset := int64(zone/100*3600 + zone%100*60)
	if b[21] == '-' {
		offset = -offset
	}
	return (at - offset) * int64(time.Second), true
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

// parseUnix reads a count of seconds, milliseconds, microseconds or nanoseconds
// since 1970. The unit is the coarsest in which the number still lies before
// April 2262: only times in the first months of 1970 could be misread, and every
// clock since the 1980s reads right in all four.
func parseUnix(s string) (int64, error) {
	d, err := parseDecimal(s)
	if err != nil {
		return 0, err
	}
	for _, digitsToNanos := range []int{9, 6, 3, 0} {
		if n, ok := d.shift(digitsToNanos); ok {
			return n, nil
		}
	}
	return 0, errTimeRange
}

// decimal is the number 0.DIGITS * 10^point, kept in decimal because a float64
// has too few digits for a time of today in nanoseconds.
type decimal struct {
	digits string
	point  int
}

// maxExponent bounds the exponent of a number: no time needs a larger one.
const maxExponent = 99

// parseDecimal reads digits with an optional fraction and exponent, as JSON
// writes numbers. A negative number is a time before 1970.
func parseDecimal(s string) (decimal, error) {
	mantissa, negative := strings.CutPrefix(s, "-")
	exponent := 0
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		e, err := parseExponent(mantissa[i+1:])
		if err != nil {
			return decimal{}, err
		}
		mantissa, exponent = mantissa[:i], e
	}
	whole, fraction, dotted := strings.Cut(mantissa, ".")
	if whole == "" || dotted && fraction == "" || !allDigits(whole) || !allDigits(fraction) {
		return decimal{}, errTimeForm
	}
	if negative {
		return decimal{}, errTimeRange
	}
	return decimal{digits: whole + fraction, point: len(whole) + exponent}, nil
}

func parseExponent(s string) (int, error) {
	sign := 1
	if rest, ok := strings.CutPrefix(s, "-"); ok {
		s, sign = rest, -1
	} else {
		s = strings.TrimPrefix(s, "+")
	}
	if s == "" || !allDigits(s) {
		return 0, errTimeForm
	}
	n := 0
	for _, c := range []byte(s) {
		n = min(n*10+int(c-'0'), maxExponent+1)
	}
	if n > maxExponent {
		return 0, errTimeRange
	}
	return sign * n, nil
}

// shift returns the whole part of d * 10^k, and false if it exceeds an int64.
func (d decimal) shift(k int) (int64, bool) {
	var n int64
	for i := range d.point + k {
		digit := int64(0)
		if i < len(d.digits) {
			digit = int64(d.digits[i] - '0')
		}
		if n > (math.MaxInt64-digit)/10 {
			return 0, false
		}
		n = n*10 + digit
	}
	return n, true
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
