package httplimit

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Structured fields (RFC 9651), as far as RateLimit and RateLimit-Policy need them: the
// parts that they are written with, and a parser of the fields that servers send.

const (
	// maxInteger is the largest integer: section 3.3.1.
	maxInteger = 999_999_999_999_999
	maxDigits  = 15 // of it
	// listSeparator is between the members of a list: section 4.1.1.
	listSeparator = ", "
)

func appendInteger(b []byte, n uint64) []byte { return strconv.AppendUint(b, min(n, maxInteger), 10) }

func integer(n uint64) string { return strconv.FormatUint(min(n, maxInteger), 10) }

// quote returns printable ASCII as a structured-field string: RFC 9651, section 4.1.6.
func quote(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return string(append(b, '"'))
}

// maxRateLimitBytes bounds the RateLimit fields of a response that are looked at, all
// lines together. An item takes 20 to 100 bytes.
const maxRateLimitBytes = 8 << 10

// parseRateLimit returns how long the lines of a RateLimit field ask to wait: the
// longest t of an item with an r of 0. ok is false, and the whole of it is to be
// ignored, if it is longer than maxRateLimitBytes, is not a List of Items (RFC 9651) that are
// strings or tokens, or has an item without a non-negative integer r, or with a t
// that is none. (The draft wants strings. Some of its versions had tokens.)
func parseRateLimit(lines []string) (d time.Duration, ok bool) {
	size := 0
	for _, line := range lines {
		size += len(line) + 1
	}
	if size > maxRateLimitBytes {
		return 0, false
	}
	p := fieldParser{strings.Join(lines, ",")}
	p.skip(" \t") // which HTTP drops around every value (RFC 9110, section 5.5)
	if p.rest == "" {
		return 0, true
	}
	for {
		pause, ok := p.serviceLimit()
		if !ok {
			return 0, false
		}
		d = max(d, pause)
		p.skip(" \t")
		if p.rest == "" {
			return d, true
		}
		if !p.take(',') {
			return 0, false
		}
		p.skip(" \t")
	}
}

// saturatedSeconds is n seconds, or the largest Duration.
func saturatedSeconds(n int64) time.Duration {
	if n > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// A fieldParser reads a structured field (RFC 9651, section 4.2) from the front. Its
// methods report whether they have found it; if not, the field is
// malformed, and they may have consumed a part of it.
type fieldParser struct{ rest string }

// serviceLimit reads an item of RateLimit and returns the time it asks to wait.
func (p *fieldParser) serviceLimit() (pause time.Duration, ok bool) {
	if kind, _, ok := p.bareItem(); !ok || kind != fieldText {
		return 0, false
	}
	missing := fieldValue{kind: fieldInteger, n: -1}
	r, t := missing, fieldValue{kind: fieldInteger}
	for p.take(';') {
		p.skip(" ")
		name, value, ok := p.parameter()
		if !ok {
			return 0, false
		}
		switch name { // of two of one name the last counts
		case "r":
			r = value
		case "t":
			t = value
		}
	}
	if !r.count() || !t.count() {
		return 0, false
	}
	if r.n == 0 {
		pause = saturatedSeconds(t.n)
	}
	return pause, true
}

// A fieldValue is the value of a parameter: its kind and, of an integer, the number.
type fieldValue struct {
	kind fieldKind
	n    int64
}

// count reports whether the value is a non-negative integer.
func (v fieldValue) count() bool { return v.kind == fieldInteger && v.n >= 0 }

func (p *fieldParser) parameter() (name string, value fieldValue, ok bool) {
	first := p.rest
	if !p.one(fieldKeyStart) {
		return "", value, false
	}
	p.run(fieldKeyByte)
	name = first[:len(first)-len(p.rest)]
	if !p.take('=') {
		return name, fieldValue{kind: fieldOther}, true
	}
	value.kind, value.n, ok = p.bareItem()
	return name, value, ok
}

// fieldKind is a type of bare item, as far as they are told apart.
type fieldKind uint8

const (
	fieldInteger fieldKind = iota
	fieldText              // a string or a token
	fieldOther
)

// bareItem reads a bare item and returns its kind, and of an integer the value.
func (p *fieldParser) bareItem() (kind fieldKind, n int64, ok bool) {
	switch {
	case p.take('"'):
		return fieldText, 0, p.quoted()
	case p.one(fieldTokenStart):
		p.run(fieldTokenByte)
		return fieldText, 0, true
	case p.take(':'):
		return fieldOther, 0, p.base64()
	case p.take('?'):
		return fieldOther, 0, p.take('0') || p.take('1')
	case p.take('@'):
		kind, _, ok := p.number()
		return fieldOther, 0, ok && kind == fieldInteger
	case p.take('%'):
		return fieldOther, 0, p.take('"') && p.percentEncoded()
	}
	return p.number()
}

// number reads an integer of at most 15 digits, or a decimal of at most 12 and 3.
func (p *fieldParser) number() (kind fieldKind, n int64, ok bool) {
	negative := p.take('-')
	digits := p.run(digitByte)
	if digits == "" || len(digits) > 15 {
		return 0, 0, false
	}
	if p.take('.') {
		fraction := p.run(digitByte)
		return fieldOther, 0, len(digits) <= 12 && fraction != "" && len(fraction) <= 3
	}
	for i := range len(digits) {
		n = n*10 + int64(digits[i]-'0')
	}
	if negative {
		n = -n
	}
	return fieldInteger, n, true
}

// quoted reads a string behind its opening quote.
func (p *fieldParser) quoted() bool {
	for {
		p.run(fieldStringByte)
		if p.take('"') {
			return true
		}
		if !p.take('\\') || !p.take('"') && !p.take('\\') {
			return false
		}
	}
}

// base64 reads a byte sequence behind its opening colon. Padding may be left out, and
// there may be too much of it (RFC 9651, section 4.2.7); one digit alone is no byte.
func (p *fieldParser) base64() bool {
	digits := p.run(base64Byte)
	p.run(func(c byte) bool { return c == '=' })
	return len(digits)%4 != 1 && p.take(':')
}

// percentEncoded reads a display string behind its opening quote: UTF-8, in which the
// bytes beyond ASCII are encoded (RFC 9651, section 4.2.10).
func (p *fieldParser) percentEncoded() bool {
	var last [utf8.UTFMax]byte // the encoded bytes of a character that is not complete
	n := 0
	for {
		// Nothing but an encoded byte can go on with a character.
		if n == 0 {
			p.run(fieldDisplayByte)
			if p.take('"') {
				return true
			}
		}
		b, ok := p.encodedByte()
		if !ok {
			return false
		}
		last[n] = b
		n++
		if utf8.FullRune(last[:n]) {
			if r, size := utf8.DecodeRune(last[:n]); r == utf8.RuneError && size < 3 || size != n {
				return false
			}
			n = 0
		}
	}
}

// encodedByte reads a byte that is written as a percent sign and two digits.
func (p *fieldParser) encodedByte() (b byte, ok bool) {
	if !p.take('%') {
		return 0, false
	}
	for range 2 {
		digit := p.rest
		if !p.one(lowerHexByte) {
			return 0, false
		}
		b = b<<4 + digit[0]&0xf
		if letterByte(digit[0]) {
			b += 9
		}
	}
	return b, true
}

// take consumes c, if it is next.
func (p *fieldParser) take(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// one consumes a byte of a class, if one is next.
func (p *fieldParser) one(class func(byte) bool) bool {
	if p.rest == "" || !class(p.rest[0]) {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// run consumes and returns all bytes of a class that are next.
func (p *fieldParser) run(class func(byte) bool) string {
	start := p.rest
	for p.one(class) {
	}
	return start[:len(start)-len(p.rest)]
}

func (p *fieldParser) skip(space string) { p.rest = strings.TrimLeft(p.rest, space) }

func lowerHexByte(c byte) bool { return digitByte(c) || c >= 'a' && c <= 'f' }
func base64Byte(c byte) bool {
	return digitByte(c) || letterByte(c) || c == '+' || c == '/'
}

func fieldKeyStart(c byte) bool { return lowerByte(c) || c == '*' }
func fieldKeyByte(c byte) bool {
	return fieldKeyStart(c) || digitByte(c) || c == '_' || c == '-' || c == '.'
}

func fieldTokenStart(c byte) bool { return letterByte(c) || c == '*' }
func fieldTokenByte(c byte) bool  { return tokenByte(c) || c == ':' || c == '/' }

func fieldStringByte(c byte) bool  { return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\' }
func fieldDisplayByte(c byte) bool { return c >= 0x20 && c <= 0x7e && c != '"' && c != '%' }
