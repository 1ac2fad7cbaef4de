package httplimit

import (
	"cmp"
	"context"
	"math"
	"net/http"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
	"github.com/sluice-go/sluice/internal/policies"
)

// A Judge decides on requests by the policies of a Config. Its Handler is the middleware
// for net/http. For frameworks whose handlers do not write their status to the ResponseWriter
// of a middleware, because they return errors, or keep one of their own, its Decide is
// the part to build a middleware of (echolimit, ginlimit and fiberlimit are):
//
//	v := judge.Decide(w.Header(), r)
//	if !v.Allowed {
//		v.Answer(w)
//		return
//	}
//	defer func() { v.Settle(status) }()
//	// call the handler with v.Writer(w) and v.Request(), find out the status
//
// A response that streams on when its handler has returned is for Verdict.Hold, an error that somebody else may answer
// for Verdict.End. Both are about InFlight policies only.
//
// It is safe for concurrent use and must be made by New.
type Judge struct {
	config   Config
	policies []policy
	queue    *policies.Queue   // nil for none
	passed   error             // errors of a Key that leave out its policy; nil for none
	asks     bool              // some Settle for the final cost
	settles  bool              // charges of a Limiter may be given back
	renewer  *inflight.Renewer // of the units of InFlight policies; nil if there are none
	fields   fields
	twice    countedTwice
}

// New returns a judge: limit.Handler(mux) is a handler with the policies in front of it. All its handlers share the policies
// and their budgets. The error is a *ConfigError. Later changes to c have no effect.
func New(c Config) (*Judge, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	list, err := newPolicies(c.Policies)
	if err != nil {
		return nil, err
	}
	j := &Judge{config: c, policies: list, queue: (*policies.Queue)(c.Queue)}
	if field, reason := policies.PutInto(j.queue, list); reason != "" {
		return nil, &ConfigError{"Config." + field, reason}
	}
	if c.OnKeyError == KeyErrorSkip {
		j.passed = ErrNoKey
	}
	if most := c.Headers.bytes(j.policies); most > maxFieldBytes {
		return nil, configErrorf("Config.Headers", "RateLimit-Policy and RateLimit of %d policies can take %d bytes; want at most %d: fewer policies, shorter names and units, or one of the two off", len(j.policies), most, maxFieldBytes)
	}
	if policies.AnyHolds(j.policies) {
		j.renewer = inflight.NewRenewer()
	}
	j.asks = c.Settle != nil || policies.AnySettles(j.policies)
	j.settles = j.asks || j.renewer != nil || policies.AnyFar(j.policies)
	j.fields = newFields(c.Headers, j.policies)
	j.twice.hook = c.OnCountedTwice
	return j, nil
}

// Handler returns a handler that calls next with the requests that are admitted. It panics
// if next is nil.
func (m *Judge) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("httplimit: the handler behind the middleware is nil; want a handler")
	}
	return &handler{m, next}
}

type handler struct {
	*Judge
	next http.Handler
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case h.config.Skip != nil && h.config.Skip(r):
		h.next.ServeHTTP(w, r)
	case h.twice.looking():
		h.serveWatched(w, r)
	default:
		h.serve(w, r)
	}
}

// serve is Decide, Answer and Settle with nothing on the heap. Clearing space for many policies
// would take a tenth of the time of a request.
func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
	if len(h.policies) > usual {
		h.serveMany(w, r)
		return
	}
	var entries [usual]entry
	var charges [usual]sluice.Charge
	var states [usual]sluice.Decision
	h.serveIn(w, r, space{Entries: entries[:0], Charges: charges[:0], States: states[:0], Settles: h.settles})
}

func (h *handler) serveMany(w http.ResponseWriter, r *http.Request) {
	var entries [policies.Inline]entry
	var charges [policies.Inline]sluice.Charge
	var states [policies.Inline]sluice.Decision
	h.serveIn(w, r, space{Entries: entries[:0], Charges: charges[:0], States: states[:0], Settles: h.settles})
}

// serveIn is serve in a space.
func (h *handler) serveIn(w http.ResponseWriter, r *http.Request, s space) {
	j := judgement{space: s}
	lacks := j.Collect(h.policies, r, h.passed)
	if h.concludes() {
		var held *running // here, since a value stored through a pointer to j would be put on the heap
		if h.renewer != nil {
			j.running = &held
		}
		h.serveAndSettle(w, r, &j, lacks)
		return
	}
	d := h.decide(&j, lacks, w.Header(), r)
	if !d.Allowed {
		h.answer(w, r, d)
		return
	}
	h.next.ServeHTTP(w, h.explained(r, d))
}

// concludes reports whether there is something to do about an admitted request that has ended.
func (m *Judge) concludes() bool { return m.asks || m.renewer != nil }

// explained returns the request for the handler.
func (m *Judge) explained(r *http.Request, d Decision) *http.Request {
	if !m.config.Explain {
		return r
	}
	return withDecision(r, d)
}

// decide judges the collected charges, and tells the headers and the hook.
func (m *Judge) decide(j *judgement, lacks policies.Lacking, header http.Header, r *http.Request) Decision {
	d := j.judge(r.Context(), lacks, m.queue)
	j.denied = !d.Allowed
	if m.renewer != nil && d.Allowed && j.Holds() {
		*j.running = new(running)
		j.Lease(&(*j.running).lease)
		m.renewer.Keep(&(*j.running).lease)
	}
	if j.Settles && !m.asks { // no Remote can deny it any more
		j.Settle(r.Context(), policies.AsCharged)
	}
	if m.config.Explain || !d.Allowed {
		d.Charges = j.explain()
	}
	m.fields.set(header, j, &d)
	if m.config.OnDecision != nil {
		m.config.OnDecision(r, d)
	}
	return d
}

// answer has a denial answered. Left without a word, net/http would send 200.
func (m *Judge) answer(w http.ResponseWriter, r *http.Request, d Decision) {
	if m.config.OnDenied == nil {
		WriteProblem(w, r, d)
		return
	}
	rec := &recorder{ResponseWriter: w}
	m.config.OnDenied(rec.writer(), r, d)
	if rec.status == 0 {
		w.WriteHeader(d.Status)
	}
}

// A Verdict is the decision on one request, and answers or settles it. It is not
// safe for concurrent use.
type Verdict struct {
	Decision

	judge     *Judge
	request   *http.Request
	judgement judgement
	held      *running // of InFlight policies, or nil
	settled   bool
	entries   [policies.Inline]entry
	charges   [policies.Inline]sluice.Charge
	states    [policies.Inline]sluice.Decision
}

// Decide judges a request as the middleware does: it asks Config.Skip, charges the
// policies, sets the headers of the response in header, and calls Config.OnDecision. It
// neither answers the request nor calls a handler: that is for the caller to do, who then
// calls Settle if it has been admitted, in any case, also if the handler panics: units of InFlight
// policies are renewed until then. It takes an allocation more than the middleware. If a hook or a Remote
// panics, the charges are settled as for a handler that panics.
func (m *Judge) Decide(header http.Header, r *http.Request) *Verdict {
	v := &Verdict{judge: m, request: r}
	if m.config.Skip != nil && m.config.Skip(r) {
		v.Decision = Decision{Allowed: true, Remaining: math.MaxInt}
		v.settled = true
		return v
	}
	v.judgement.space = space{Entries: v.entries[:0], Charges: v.charges[:0], States: v.states[:0], Settles: m.settles}
	lacks := v.judgement.Collect(m.policies, r, m.passed)
	if m.renewer != nil {
		v.judgement.running = &v.held
	}
	decided := false
	defer func() {
		if !decided { // a hook or a Remote has panicked
			v.Settle(http.StatusInternalServerError)
		}
	}()
	v.Decision = m.decide(&v.judgement, lacks, header, r)
	decided = true
	if v.settled = !v.Allowed || !m.concludes(); v.Allowed {
		v.request = m.explained(r, v.Decision)
	}
	return v
}

// Request returns the request that the handler should see: the one that was judged, or
// with Config.Explain a copy of it by which handlers find the Decision.
func (v *Verdict) Request() *http.Request { return v.request }

// Answer answers a request that was denied, by Config.OnDenied or WriteProblem.
func (v *Verdict) Answer(w http.ResponseWriter) { v.judge.answer(w, v.request, v.Decision) }

// Settle asks Config.Settle, and that of each policy, for the final cost of the request, given the status of its
// response, and charges or gives back the difference. A status of 0 says that there is
// none because the client has gone, and counts as StatusClientGone. It gives back the units of InFlight
// policies. Only the first call does anything, and none for requests that were denied or
// skipped.
func (v *Verdict) Settle(status int) {
	if v.settled {
		return
	}
	v.settled = true
	v.judge.conclude(&v.judgement, v.request, status)
}

type decisionKey struct{}

func withDecision(r *http.Request, d Decision) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), decisionKey{}, d))
}

// DecisionFromContext returns the decision on the request of a handler, given the context
// of the request. ok is false if no middleware with Config.Explain has judged it. Of
// several, the innermost decides.
func DecisionFromContext(ctx context.Context) (d Decision, ok bool) {
	d, ok = ctx.Value(decisionKey{}).(Decision)
	return d, ok
}

// StatusClientGone is the status that Config.Settle is told of where there is no response:
// the handler has returned without a word after the context of the request had ended. nginx
// logs it then, and it is no status of HTTP.
const StatusClientGone = 499

// serveAndSettle judges the request, calls the handler and settles the cost of the request, also if one of them
// panics. It does not recover, so that the panic goes on as it is.
func (h *handler) serveAndSettle(w http.ResponseWriter, r *http.Request, j *judgement, lacks policies.Lacking) {
	var rec *recorder // of an admitted request
	denied, panicked := false, true
	defer func() {
		status := 0
		switch {
		case denied:
			return
		case rec != nil && rec.status != 0:
			status = rec.status
		case panicked:
			status = http.StatusInternalServerError
		case r.Context().Err() == nil:
			status = http.StatusOK
		}
		h.conclude(j, r, status)
	}()
	d := h.decide(j, lacks, w.Header(), r)
	if denied = !d.Allowed; denied {
		h.answer(w, r, d)
		return
	}
	r = h.explained(r, d)
	rec = &recorder{ResponseWriter: w, running: j.held()}
	h.next.ServeHTTP(rec.writer(), r)
	panicked = false
}

// conclude gives back the units of the running request, and settles the rest.
func (m *Judge) conclude(j *judgement, r *http.Request, status int) {
	if j.end(); !j.denied { // a hook can panic about a denial
		m.settle(j, r, status)
	}
}

// settle asks for the final cost of the request, and charges or gives back the difference. A status of 0 is none.
func (m *Judge) settle(j *judgement, r *http.Request, status int) {
	if !m.asks {
		return
	}
	status = cmp.Or(status, StatusClientGone)
	final := policies.AsCharged
	if m.config.Settle != nil {
		final = m.config.Settle(r, status)
	}
	j.SettleEach(r.Context(), r, status, final)
}
