package httplimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/hint"
	"github.com/sluice-go/sluice/internal/policies"
)

// Headers chooses the fields of responses that tell about the limits; the package documentation explains
// the values. The zero value is Retry-After on denials and nothing else.
//
// The fields are set before the handler or Config.OnDenied is called; for other names, rename
// them there. RateLimit and RateLimit-Policy are lists: they add to the fields that are there already, so
// that middlewares can be stacked. The other fields replace it.
//
// A browser shows them to a script of another origin only if Access-Control-Expose-Headers
// names them, Retry-After too, and a denial only if it has the fields of CORS: put the
// middleware for CORS around this one.
type Headers struct {
	// OmitRetryAfter leaves out Retry-After. It is otherwise on every denial that a wait
	// helps: whole seconds, rounded up, at least 1. On a denial for ever, such as a cost
	// above the burst, and on one for the lack of a key there is none.
	//
	// It is in real time, as Decision.RetryAfter is: a client that heeds it is not denied
	// again for the same requests, also under a sluice.CoarseClock whose refreshes come
	// no later than its Resolution after their time.
	//
	// With RateLimit it is no earlier than the t of any violated policy, as the draft
	// wants it, unless MaxRetryAfter cuts it. For costs above 1 that can be later than needed.
	OmitRetryAfter bool

	// RetryJitter is added to Retry-After, so that not all clients come back in the same
	// second: a whole number of seconds drawn evenly from 0 to RetryJitter. It must be 0
	// or whole seconds, up to an hour.
	RetryJitter time.Duration

	// MaxRetryAfter is the longest wait that Retry-After tells, before RetryJitter: a client that would have to wait for a
	// day, or is blocked for as long, asks again sooner, and is denied again if it is too early. It changes no decision, and
	// neither Decision.RetryAfter nor the t of RateLimit and X-RateLimit-Reset, which stay true: clients that heed these are
	// not called back sooner, so leave them off for these. 0 means no bound; it must be whole seconds, up to 365 days.
	MaxRetryAfter time.Duration

	// RateLimitPolicy sends the field RateLimit-Policy: the limits. Policies with equal
	// limits for all keys send the same value all the time. It and RateLimit must not be able to take
	// more than 8 KiB, with the longest numbers and partition keys: some 80 policies whose names have 10 bytes, or 25
	// with a PartitionKey.
	RateLimitPolicy HeaderVersion

	// RateLimit sends the field RateLimit: how much is left. If RateLimitPolicy is
	// on, too, both must be of the same version.
	RateLimit HeaderVersion

	// PartitionKey returns the partition key (pk) of a request in the two fields, given
	// the name of the policy and the key of the request. Clients see it, and with them
	// everybody who sees their responses: it must not give away secrets about the
	// key. HashedPartitionKey makes one that does not. Longer results than 64 bytes are
	// left out, and so are empty ones. nil leaves out all.
	PartitionKey func(policy, key string) []byte

	// XLimit, XRemaining and XReset send the older fields X-RateLimit-Limit, -Remaining
	// and -Reset. They speak of the policy with the least remaining, or the first of
	// these. Limit is the most at once; Reset is when that is available again, rounded
	// up to whole seconds, and with FixedWindow the end of the window.
	XLimit, XRemaining bool
	XReset             ResetForm

	// XRetryAfter sends X-RateLimit-Retry-After, which is the same as Retry-After.
	XRetryAfter bool

	// ServerTiming sends Server-Timing (W3C) with the metric queue, whose dur is the milliseconds that the request has
	// waited in the Queue, if it has. It adds to the field if that is there already.
	ServerTiming bool
}

// HeaderVersion is a version of the fields RateLimit-Policy and RateLimit, which are
// not a standard yet. Later drafts will be further values.
type HeaderVersion uint8

const (
	// HeaderOff sends no field.
	HeaderOff HeaderVersion = iota
	// Draft11 is draft-ietf-httpapi-ratelimit-headers-11: lists of structured fields
	// (RFC 9651).
	Draft11
)

// ResetForm is the form of X-RateLimit-Reset.
type ResetForm uint8

const (
	// ResetOff sends no field.
	ResetOff ResetForm = iota
	// ResetDelta is the number of seconds from now.
	ResetDelta
	// ResetUnix is the time in seconds since 1970, on the clock of the limiter.
	ResetUnix
)

const (
	maxPartitionKey = 64
	minSecret       = 16
)

// hint is how the wait after a denial is told.
func (c *Headers) hint() hint.Hint {
	return hint.Hint{Most: c.MaxRetryAfter, Jitter: c.RetryJitter, Unit: time.Second}
}

func (c *Headers) validate() error {
	const field = "Config.Headers."
	h := c.hint()
	jitter, most := h.CheckJitter(), h.CheckMost()
	switch {
	case jitter != "":
		return &ConfigError{field + "RetryJitter", jitter}
	case most != "":
		return &ConfigError{field + "MaxRetryAfter", most}
	case c.MaxRetryAfter > 0 && c.OmitRetryAfter && !c.XRetryAfter:
		return configErrorf(field+"MaxRetryAfter", "%v with OmitRetryAfter, so that there is nothing to bound; want 0", c.MaxRetryAfter)
	case c.RetryJitter > 0 && c.OmitRetryAfter && !c.XRetryAfter:
		return configErrorf(field+"RetryJitter", "%v with OmitRetryAfter, so that there is nothing to add it to; want 0", c.RetryJitter)
	case c.RateLimitPolicy > Draft11:
		return configErrorf(field+"RateLimitPolicy", "%d is not a version; want HeaderOff or Draft11", c.RateLimitPolicy)
	case c.RateLimit > Draft11:
		return configErrorf(field+"RateLimit", "%d is not a version; want HeaderOff or Draft11", c.RateLimit)
	case c.PartitionKey != nil && c.RateLimitPolicy == HeaderOff && c.RateLimit == HeaderOff:
		return configErrorf(field+"PartitionKey", "is set, but neither RateLimitPolicy nor RateLimit, which would send it; want one of them, or nil")
	case c.XReset > ResetUnix:
		return configErrorf(field+"XReset", "%d is not a form; want ResetOff, ResetDelta or ResetUnix", c.XReset)
	}
	return nil
}

// maxFieldBytes bounds RateLimit-Policy and RateLimit together. Servers and proxies commonly refuse responses with more
// than 16 KiB of headers, beside other fields.
const maxFieldBytes = 8 << 10

// bytes returns the most that RateLimit-Policy and RateLimit can take for policies.
func (c *Headers) bytes(list []policy) (most int) {
	for i := range list {
		p := &list[i]
		item := len(listSeparator) + len(p.Own.quoted) + 2*(len(";q=")+maxDigits)
		if c.PartitionKey != nil {
			item += len(";pk=::") + base64.StdEncoding.EncodedLen(maxPartitionKey)
		}
		if c.RateLimit != HeaderOff {
			most += item
		}
		if c.RateLimitPolicy == HeaderOff {
			continue
		}
		if most += item; p.Own.unit != "" {
			most += len(";qu=") + len(quote(p.Own.unit))
		}
	}
	return most
}

// HashedPartitionKey returns a function for Headers.PartitionKey. It returns 16 bytes
// of the HMAC-SHA256 of policy and key: the same for the same two, and of no use to who
// does not know the secret. The secret must have at least 16 bytes; with the same one,
// several servers send the same partition keys.
func HashedPartitionKey(secret []byte) (func(policy, key string) []byte, error) {
	if len(secret) < minSecret {
		return nil, configErrorf("HashedPartitionKey.secret", "%d bytes can be guessed; want at least %d random ones", len(secret), minSecret)
	}
	secret = append([]byte(nil), secret...)
	return func(policy, key string) []byte {
		mac := hmac.New(sha256.New, secret)
		var length [8]byte // so that no other two run together to the same bytes
		binary.BigEndian.PutUint64(length[:], uint64(len(policy)))
		mac.Write(length[:])
		mac.Write([]byte(policy))
		mac.Write([]byte(key))
		return mac.Sum(nil)[:16]
	}, nil
}

// fields sets the headers of responses.
type fields struct {
	Headers
	hint   hint.Hint
	quotas bool                        // whether any field needs them
	count  int                         // of the fields that can be on
	list   *atomic.Pointer[policyList] // nil if requests have values of their own
}

// A policyList is the value of RateLimit-Policy for policies under some terms.
type policyList struct {
	terms []*terms
	text  string
}

func newFields(c Headers, list []policy) fields {
	f := fields{Headers: c, hint: c.hint()}
	for _, on := range []bool{c.RateLimitPolicy != HeaderOff, c.RateLimit != HeaderOff, c.XLimit, c.XRemaining, c.XReset != ResetOff} {
		if on {
			f.count++
			f.quotas = true
		}
	}
	f.count += 2
	if c.RateLimitPolicy == HeaderOff || c.PartitionKey != nil {
		return f
	}
	for i := range list {
		if list[i].Remote != nil {
			return f // which may have another limit with each request
		}
	}
	f.list = new(atomic.Pointer[policyList])
	f.list.Store(&policyList{})
	return f
}

// set sets the headers for a decision.
func (f *fields) set(h http.Header, j *judgement, d *Decision) {
	if f.ServerTiming && d.Waited > 0 {
		h["Server-Timing"] = append(h["Server-Timing"], policies.ServerTiming(d.Waited))
	}
	switch {
	case d.Status == http.StatusBadRequest, d.Status == StatusClientGone, d.Allowed && !f.quotas:
		return
	case d.Status == http.StatusServiceUnavailable: // so that nothing is known
		f.setRetryAfter(h, make([]string, 0, 2), nil, d)
		return
	}
	switch {
	case !f.quotas:
		f.setIn(nil, h, j, d)
	case len(j.Entries) > usual:
		f.setMany(h, j, d)
	default:
		var few [usual]quota
		f.setIn(few[:0], h, j, d)
	}
}

func (f *fields) setMany(h http.Header, j *judgement, d *Decision) {
	var few [policies.Inline]quota
	f.setIn(few[:0], h, j, d)
}

// setIn is set with space for the quotas.
func (f *fields) setIn(quotas []quota, h http.Header, j *judgement, d *Decision) {
	values := make([]string, 0, f.count) // of all fields, in one allocation
	if f.quotas {
		quotas = j.quotas(quotas)
	}
	if len(quotas) > 0 && f.RateLimitPolicy != HeaderOff {
		values = add(h, "Ratelimit-Policy", values, f.policyField(quotas))
	}
	if len(quotas) > 0 && f.RateLimit != HeaderOff {
		values = add(h, "Ratelimit", values, f.limitList(quotas))
	}
	values = f.setX(h, values, quotas)
	if !d.Allowed && d.RetryAfter != sluice.Never {
		f.setRetryAfter(h, values, quotas, d)
	}
}

// add adds a value to a list field. name is canonical.
func add(h http.Header, name string, values []string, value string) []string {
	if old := h[name]; len(old) > 0 {
		h[name] = append(old, value)
		return values
	}
	return set(h, name, values, value)
}

// set sets a field. The value goes to the end of values, which has room for it. What
// the handler appends to the field goes elsewhere.
func set(h http.Header, name string, values []string, value string) []string {
	values = append(values, value)
	n := len(values)
	h[name] = values[n-1 : n : n]
	return values
}

// policyField returns the value of RateLimit-Policy, which is kept while the terms are those
// of the limiters, and the same.
func (f *fields) policyField(quotas []quota) string {
	if f.list == nil {
		return f.policyList(quotas)
	}
	kept := f.list.Load()
	if slices.EqualFunc(quotas, kept.terms, func(q quota, t *terms) bool { return q.terms == t }) {
		return kept.text
	}
	next := &policyList{text: f.policyList(quotas)}
	for i := range quotas {
		if quotas[i].terms != quotas[i].policy.Own.terms.Load() {
			return next.text // of a key with a limit of its own
		}
		next.terms = append(next.terms, quotas[i].terms)
	}
	f.list.Store(next)
	return next.text
}

// policyList returns the value of RateLimit-Policy.
func (f *fields) policyList(quotas []quota) string {
	var buf [512]byte
	b := buf[:0]
	for i := range quotas {
		if i > 0 {
			b = append(b, listSeparator...)
		}
		switch f.RateLimitPolicy {
		case Draft11:
			b = f.appendPolicy11(b, &quotas[i])
		}
	}
	return string(b)
}

// limitList returns the value of RateLimit.
func (f *fields) limitList(quotas []quota) string {
	if len(quotas) > usual {
		var space [512]byte
		return f.limitListIn(space[:0], quotas)
	}
	var space [128]byte
	return f.limitListIn(space[:0], quotas)
}

func (f *fields) limitListIn(b []byte, quotas []quota) string {
	for i := range quotas {
		if i > 0 {
			b = append(b, listSeparator...)
		}
		switch f.RateLimit {
		case Draft11:
			b = f.appendLimit11(b, &quotas[i])
		}
	}
	return string(b)
}

// appendPolicy11 appends an item of RateLimit-Policy: section 3.1 of the draft.
func (f *fields) appendPolicy11(b []byte, q *quota) []byte {
	b = append(b, q.policy.Own.quoted...)
	b = appendInteger(append(b, ";q="...), uint64(q.capacity))
	if q.policy.Own.unit != "" {
		b = append(append(b, ";qu="...), quote(q.policy.Own.unit)...)
	}
	if q.terms != nil && q.terms.window > 0 {
		b = appendInteger(append(b, ";w="...), seconds(uint64(q.terms.window)))
	}
	return f.appendPartition(b, q)
}

// appendLimit11 appends an item of RateLimit: section 4.1 of the draft.
func (f *fields) appendLimit11(b []byte, q *quota) []byte {
	b = append(b, q.policy.Own.quoted...)
	b = appendInteger(append(b, ";r="...), uint64(q.remaining))
	if q.effective > 0 {
		b = appendInteger(append(b, ";t="...), seconds(uint64(q.effective)))
	}
	return f.appendPartition(b, q)
}

func (f *fields) appendPartition(b []byte, q *quota) []byte {
	if f.PartitionKey == nil {
		return b
	}
	pk := f.PartitionKey(q.policy.Name, q.key)
	if len(pk) == 0 || len(pk) > maxPartitionKey {
		return b
	}
	b = append(b, ";pk=:"...)
	return append(base64.StdEncoding.AppendEncode(b, pk), ':')
}

func (f *fields) setX(h http.Header, values []string, quotas []quota) []string {
	if len(quotas) == 0 {
		return values
	}
	q := &quotas[0]
	for i := range quotas {
		if quotas[i].remaining < q.remaining {
			q = &quotas[i]
		}
	}
	if f.XLimit {
		values = set(h, "X-Ratelimit-Limit", values, integer(uint64(q.capacity)))
	}
	if f.XRemaining {
		values = set(h, "X-Ratelimit-Remaining", values, integer(uint64(q.remaining)))
	}
	switch {
	case q.never:
	case f.XReset == ResetDelta:
		values = set(h, "X-Ratelimit-Reset", values, integer(seconds(uint64(q.reset))))
	case f.XReset == ResetUnix:
		values = set(h, "X-Ratelimit-Reset", values, integer(seconds(uint64(now(q.policy))+uint64(q.reset))))
	}
	return values
}

// now is the time on the clock that a policy goes by.
func now(p *policy) int64 {
	if p.Remote != nil {
		return time.Now().UnixNano()
	}
	return max(p.Own.conf.Clock.Now(), 0)
}

func (f *fields) setRetryAfter(h http.Header, values []string, quotas []quota, d *Decision) {
	wait := d.RetryAfter
	if f.RateLimit != HeaderOff {
		for i := range quotas {
			if slices.Contains(d.Violated, quotas[i].policy.Name) {
				wait = max(wait, quotas[i].effective)
			}
		}
	}
	text := strconv.FormatUint(seconds(uint64(f.hint.Of(max(wait, 1)))), 10)
	if !f.OmitRetryAfter {
		values = set(h, "Retry-After", values, text)
	}
	if f.XRetryAfter {
		set(h, "X-Ratelimit-Retry-After", values, text)
	}
}

// seconds rounds up.
func seconds(ns uint64) uint64 {
	s := ns / uint64(time.Second)
	if ns%uint64(time.Second) != 0 {
		s++
	}
	return s
}
