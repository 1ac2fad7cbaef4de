package rls

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-go/sluice/rules"
)

// The messages of ShouldRateLimit on the wire, read into and written from the types of package rules
// without the types of the protocol in between. Tests compare both ways with package proto.

var (
	errWire = errors.New("the message is no RateLimitRequest")
	errUTF8 = errors.New("a text of the RateLimitRequest is not UTF-8")
)

// wire is the rest of a message, not read yet.
type wire struct {
	rest string
	err  error // ends the message
}

// field reads the tag of the next field; 0 at the end.
func (r *wire) field() (number protowire.Number, kind protowire.Type) {
	if r.rest == "" {
		return 0, 0
	}
	tag := r.varint()
	n := tag >> 3
	if r.err == nil && (n < uint64(protowire.MinValidNumber) || n > uint64(protowire.MaxValidNumber)) {
		r.fail(errWire)
	}
	if r.err != nil {
		return 0, 0
	}
	return protowire.Number(n), protowire.Type(tag & 7)
}

// fail ends the message, unless err is nil. The first error stays.
func (r *wire) fail(err error) {
	if err != nil && r.err == nil {
		r.err, r.rest = err, ""
	}
}

// varint reads a number, of 10 bytes at most, the last of which has one bit.
func (r *wire) varint() (v uint64) {
	for i := range min(len(r.rest), 10) {
		b := r.rest[i]
		if i == 9 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			r.rest = r.rest[i+1:]
			return v
		}
	}
	r.fail(errWire)
	return 0
}

// bytes reads a part with its length before it.
func (r *wire) bytes() string {
	n := r.varint()
	if n > uint64(len(r.rest)) {
		r.fail(errWire)
		return ""
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

// anyText reads a string that may be of a client's making. Bytes that are not UTF-8 become question marks, since proxies
// pass on what is refused; and no more bytes, which could be above a bound.
func (r *wire) anyText() string { return validText(r.bytes()) }

func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "?")
}

// withValidTexts is a message in which the texts of entries are UTF-8, for package proto, which refuses all other texts.
func withValidTexts(message []byte) []byte { return withValid(message, 2, 1) }

// withValid goes down to the texts of entries by the numbers of fields.
func withValid(message []byte, down ...protowire.Number) (out []byte) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return append(out, message...) // which is no message either
		}
		field := message[:n]
		message = message[n:]
		text := len(down) == 0 && number <= 2
		if kind != protowire.BytesType || !text && (len(down) == 0 || number != down[0]) {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		value, _ := protowire.ConsumeBytes(field[tag:])
		if text {
			value = []byte(validText(string(value)))
		} else {
			value = withValid(value, down[1:]...)
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), value)
	}
	return out
}

// text reads a string, which is UTF-8.
func (r *wire) text() string {
	s := r.bytes()
	if !utf8.ValidString(s) {
		r.fail(errUTF8)
	}
	return s
}

// skip passes over a field that means nothing here.
func (r *wire) skip(number protowire.Number, kind protowire.Type) {
	n := protowire.ConsumeFieldValue(number, kind, []byte(r.rest))
	if n < 0 {
		r.fail(errWire)
		return
	}
	r.rest = r.rest[n:]
}

// readWire translates a request, and checks its sizes. Bytes that are no request are errWire or errUTF8.
func (s *Service) readWire(w *scratch, text string) error {
	w.begin()
	r := wire{rest: text}
	for number, kind := r.field(); number != 0; number, kind = r.field() {
		switch {
		case number == 1 && kind == protowire.BytesType:
			w.req.Domain = r.text()
		case number == 2 && kind == protowire.BytesType:
			d := wire{rest: r.bytes()}
			s.readDescriptor(w, &d)
			r.fail(d.err)
		case number == 3 && kind == protowire.VarintType:
			w.req.Hits = uint32(r.varint())
		default:
			r.skip(number, kind)
		}
	}
	if r.err != nil {
		return r.err
	}
	return w.link(&s.options)
}

func (s *Service) readDescriptor(w *scratch, r *wire) {
	d := w.descriptor(&s.options)
	for number, kind := r.field(); number != 0; number, kind = r.field() {
		switch {
		case number == 1 && kind == protowire.BytesType:
			e := wire{rest: r.bytes()}
			w.entry(&s.options, d, e.readEntry())
			r.fail(e.err)
		case number == 2 && kind == protowire.BytesType:
			l := wire{rest: r.bytes()}
			d.limited = true
			l.readOverride(d)
			r.fail(l.err)
		case number == 3 && kind == protowire.BytesType:
			h := wire{rest: r.bytes()}
			d.counted = true
			h.readHits(d)
			r.fail(h.err)
		case number == 4 && kind == protowire.VarintType:
			d.refund = r.varint() != 0
		default:
			r.skip(number, kind)
		}
	}
}

func (r *wire) readEntry() (e rules.Entry) {
	for number, kind := r.field(); number != 0; number, kind = r.field() {
		switch {
		case number == 1 && kind == protowire.BytesType:
			e.Key = r.anyText()
		case number == 2 && kind == protowire.BytesType:
			e.Value = r.anyText()
		default:
			r.skip(number, kind)
		}
	}
	return e
}

func (r *wire) readOverride(d *described) {
	for number, kind := r.field(); number != 0; number, kind = r.field() {
		switch {
		case number == 1 && kind == protowire.VarintType:
			d.override.Requests = uint32(r.varint())
		case number == 2 && kind == protowire.VarintType:
			d.override.Unit = unit(int32(r.varint()))
		default:
			r.skip(number, kind)
		}
	}
}

func (r *wire) readHits(d *described) {
	for number, kind := r.field(); number != 0; number, kind = r.field() {
		if number == 1 && kind == protowire.VarintType {
			d.hits = r.varint()
		} else {
			r.skip(number, kind)
		}
	}
}

// appendWire appends the answer to b, without Options.DynamicMetadata.
func (s *Service) appendWire(b []byte, resp *rules.Response) []byte {
	b = appendNumber(b, 1, uint64(resp.Code))
	for i := range resp.Statuses {
		st := &resp.Statuses[i]
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeStatus(st)))
		b = appendNumber(b, 1, uint64(st.Code))
		if st.Limited {
			b = protowire.AppendTag(b, 2, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(sizeLimit(st)))
			b = appendNumber(b, 1, uint64(st.Requests))
			b = appendNumber(b, 2, uint64(st.Unit))
			b = appendText(b, 3, nameOf(st))
		}
		b = appendNumber(b, 3, uint64(st.Remaining))
		if st.Limited {
			seconds := uint64(st.ResetAfter / time.Second)
			b = protowire.AppendTag(b, 4, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(sizeNumber(seconds)))
			b = appendNumber(b, 1, seconds)
		}
	}
	if s.options.Headers && resp.Tightest >= 0 {
		st := &resp.Statuses[resp.Tightest]
		b = appendHeader(b, s.options.LimitHeader, uint64(st.Requests))
		b = appendHeader(b, s.options.RemainingHeader, uint64(st.Remaining))
		b = appendHeader(b, s.options.ResetHeader, uint64(st.ResetAfter/time.Second))
	}
	if resp.Code != rules.OverLimit {
		return b
	}
	if wait := retryHeader(resp); wait > 0 {
		b = appendHeader(b, retryAfterHeader, wait)
	}
	rule := resp.DeniedBy()
	if h := s.ruleHeader(resp, rule); h != "" {
		b = appendHeaderText(b, s.options.RuleHeader, h)
	}
	return appendDenial(b, rule)
}

// appendDenial appends the dynamic metadata of a call that is denied: a Struct, which is a map of text to Value,
// in another one.
func appendDenial(b []byte, rule string) []byte {
	if rule == "" {
		return b
	}
	sizeIn := func(size int) int { return 1 + protowire.SizeBytes(size) }
	text := sizeIn(len(rule))                 // Value.string_value
	entry := sizeText(ruleKey) + sizeIn(text) // of Struct.fields
	inner := sizeIn(sizeIn(entry))            // Value.struct_value
	outer := sizeText(ownKey) + sizeIn(inner) // of Struct.fields
	begin := func(number protowire.Number, size int) {
		b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(size))
	}
	begin(6, sizeIn(outer))
	begin(1, outer)
	b = appendText(b, 1, ownKey)
	begin(2, inner)
	begin(5, sizeIn(entry))
	begin(1, entry)
	b = appendText(b, 1, ruleKey)
	begin(2, text)
	begin(3, len(rule))
	return append(b, rule...)
}

func nameOf(st *rules.Status) string {
	if st.Rule == nil {
		return ""
	}
	return st.Rule.Name()
}

// The fields of the messages have numbers below 16: a tag is one byte. A field that is 0 or empty is
// not there.

func sizeNumber(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func appendNumber(b []byte, number protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
}

func sizeText(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}

func appendText(b []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

func sizeLimit(st *rules.Status) int {
	return sizeNumber(uint64(st.Requests)) + sizeNumber(uint64(st.Unit)) + sizeText(nameOf(st))
}

func sizeStatus(st *rules.Status) int {
	n := sizeNumber(uint64(st.Code)) + sizeNumber(uint64(st.Remaining))
	if st.Limited {
		n += 1 + protowire.SizeBytes(sizeLimit(st)) + 1 + protowire.SizeBytes(sizeNumber(uint64(st.ResetAfter/time.Second)))
	}
	return n
}

func appendHeader(b []byte, name string, v uint64) []byte {
	var few [20]byte
	return appendHeaderText(b, name, string(strconv.AppendUint(few[:0], v, 10)))
}

func appendHeaderText(b []byte, name, value string) []byte {
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sizeText(name)+sizeText(value)))
	return appendText(appendText(b, 1, name), 2, value)
}
