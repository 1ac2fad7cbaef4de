package rls

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// holdJSON is the body of all four calls about holds. Those that do not use a field refuse it.
type holdJSON struct {
	Domain      string           `json:"domain"`
	ID          string           `json:"id"`
	Descriptors []descriptorJSON `json:"descriptors"`
	Hits        *uint64          `json:"hits"`
	TTL         string           `json:"ttl"`
	GiveBack    *bool            `json:"give_back"`
	Step        string           `json:"step"`
}

type descriptorJSON struct {
	Entries []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"entries"`
	Hits  *uint64 `json:"hits"`
	Limit *struct {
		Requests uint32 `json:"requests_per_unit"`
		Unit     string `json:"unit"`
	} `json:"limit"`
}

// heldJSON is the answer to all four.
type heldJSON struct {
	ID       string       `json:"id,omitempty"`
	Code     string       `json:"code"`
	DeniedBy string       `json:"denied_by,omitempty"`
	Wait     *float64     `json:"retry_after,omitempty"` // seconds
	Replayed bool         `json:"replayed,omitempty"`    // an earlier call has done it
	Capped   bool         `json:"capped,omitempty"`      // a settlement was charged up to max_debt only
	Statuses []statusJSON `json:"statuses"`
}

type statusJSON struct {
	Code      string  `json:"code"`
	Rule      string  `json:"rule,omitempty"`
	Limit     *uint32 `json:"limit,omitempty"`
	Remaining *uint32 `json:"remaining,omitempty"`
}

// verb is one of the four calls.
type verb struct {
	do                      func(*rules.Hold, *rules.Response) error
	hits, ttl, lapses, step bool // fields that it uses
	answers                 bool // with statuses
	nameless                bool // it is about no hold
}

// Holds answers calls about holds, in JSON: POST /hold, /extend, /settle and /release. The last part of the path
// is the call. A body is at most as large as the bounds of Options let a request be, without spaces, and unknown fields are refused.
//
// The answer is 200 for a call that was made, and 429 for a /hold or /extend that was denied, with Retry-After unless waiting does
// not help. The answer to a call that was made before has "replayed": true. 400 is for a malformed request, or one with an
// Idempotency-Key header and another id; 408 for a body that has not come in Options.MessageTime; 404 for a hold that
// is not there (any more); 409 for an id of another request, or of a hold that has ended; 413 for a body that is too
// large; 501 if the Store keeps no holds; 503 if it does not answer, if there is no room for another hold, or if too many
// large bodies are under way. Those have the error as text.
func (s *Service) Holds() http.Handler {
	settle := func(h *rules.Hold, _ *rules.Response) error { return s.engine.Settle(h) }
	mux := http.NewServeMux()
	for path, v := range map[string]verb{
		"POST /hold":    {do: s.engine.Hold, hits: true, ttl: true, lapses: true, answers: true},
		"POST /extend":  {do: s.engine.Extend, hits: true, ttl: true, step: true, answers: true},
		"POST /settle":  {do: settle, hits: true},
		"POST /release": {do: s.releaseHold},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { s.answerHold(w, r, &v) })
	}
	return mux
}

// ResetKeys answers POST, with the domain and the descriptors of a call about a hold as JSON: it makes their keys fresh, by
// Engine.Reset. It is for operators: let nobody else reach it. The answer is 200; 400 for a malformed request, or one with a
// descriptor without a limit; 415 for a body that is not said to be application/json, as another site could send it from a browser;
// 501 if the Store makes no keys fresh; 503 if it does not answer.
func (s *Service) ResetKeys() http.Handler {
	v := verb{do: func(h *rules.Hold, _ *rules.Response) error { return s.engine.Reset(&h.Request) }, nameless: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "the method is "+r.Method+"; want POST", http.StatusMethodNotAllowed)
		case kind != "application/json":
			http.Error(w, fmt.Sprintf("Content-Type is %.64q; want application/json", kind), http.StatusUnsupportedMediaType)
		default:
			s.answerHold(w, r, &v)
		}
	})
}

func (s *Service) answerHold(w http.ResponseWriter, r *http.Request, v *verb) {
	body, taken, err := s.body(w, r)
	defer s.bodies.give(taken)
	var out *heldJSON
	code := bodyCode(err)
	if err != nil {
		err = fmt.Errorf("the body: %w", err)
	} else {
		out, code, err = s.answerHoldJSON(body, r, v)
	}
	switch {
	case errors.Is(err, errBusy):
		refuseBusy(w, err)
		return
	case out == nil:
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if out.Code == rules.OverLimit.String() {
		if out.Wait != nil {
			w.Header().Set("Retry-After", strconv.FormatInt(seconds(time.Duration(*out.Wait*float64(time.Second))), 10))
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_ = json.NewEncoder(w).Encode(out)
}

// answerHoldJSON answers a body, or says why not and with which status.
func (s *Service) answerHoldJSON(body []byte, r *http.Request, v *verb) (out *heldJSON, code int, err error) {
	entered, err := s.enter(len(body))
	if err != nil {
		return nil, bodyCode(err), err
	}
	defer s.leave(entered)
	var in holdJSON
	if err := s.readJSON(body, &in); err != nil {
		s.refused.Add(1)
		return nil, bodyCode(err), fmt.Errorf("the body: %w", err)
	}
	out, err = withHold(s, func(w *scratch, o *Options) (rules.Hold, error) { return in.read(w, o, r, v) }, v.do, func(h *held) *heldJSON {
		return answerOf(h, v)
	})
	if err != nil {
		return nil, httpCode(status.Code(err)), errors.New(status.Convert(err).Message())
	}
	return out, http.StatusOK, nil
}

// readJSON reads one value, and nothing else.
func (s *Service) readJSON(body []byte, in *holdJSON) error {
	if err := s.options.jsonFits(body); err != nil {
		return errors.New(status.Convert(err).Message())
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more after the object; want one")
	}
	return nil
}

// httpCode is the status of an error about a hold.
func httpCode(c codes.Code) int {
	switch c {
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists:
		return http.StatusConflict
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.ResourceExhausted, codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func invalid(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
}

// read translates a body.
func (in *holdJSON) read(w *scratch, o *Options, r *http.Request, v *verb) (h rules.Hold, err error) {
	if in.ID, err = in.id(r.Header["Idempotency-Key"]); err != nil {
		return h, err
	}
	switch {
	case in.ID != "" && v.nameless:
		return h, invalid("id is not of this call")
	case in.ID == "" && !v.lapses && !v.nameless:
		return h, invalid("there is no id; want that of the hold, in the field id or the header Idempotency-Key")
	case in.Hits != nil && !v.hits:
		return h, invalid("hits are not of this call")
	case in.TTL != "" && !v.ttl:
		return h, invalid("ttl is not of this call")
	case in.GiveBack != nil && !v.lapses:
		return h, invalid("give_back is not of this call")
	case in.Step != "" && !v.step:
		return h, invalid("step is not of this call")
	}
	h.ID, h.Step = in.ID, in.Step
	h.GiveBack = in.GiveBack != nil && *in.GiveBack
	if in.TTL != "" {
		if h.TTL, err = time.ParseDuration(in.TTL); err != nil || h.TTL <= 0 {
			return h, invalid("ttl is %.64q; want a time such as 30s or 10m, above 0", in.TTL)
		}
	}
	w.req.Domain = in.Domain
	for i := range in.Descriptors {
		in.descriptor(w, o, i)
		if !v.hits && in.Descriptors[i].Hits != nil {
			return h, invalid("hits are not of this call")
		}
	}
	return h, nil
}

// id is the id of the hold, which may be in the body, in the header, or in both.
func (in *holdJSON) id(header []string) (string, error) {
	switch {
	case len(header) > 1:
		return "", invalid("there are %d headers Idempotency-Key; want one", len(header))
	case len(header) == 0:
		return in.ID, nil
	case in.ID != "" && in.ID != header[0]:
		return "", invalid("id and the header Idempotency-Key differ; want one of them, or the same in both")
	}
	return header[0], nil
}

func (in *holdJSON) descriptor(w *scratch, o *Options, i int) {
	from := &in.Descriptors[i]
	d := w.descriptor(o)
	for _, e := range from.Entries {
		w.entry(o, d, rules.Entry{Key: e.Key, Value: e.Value})
	}
	if hits := cmp.Or(from.Hits, in.Hits); hits != nil {
		d.counted, d.hits = true, *hits
	}
	if from.Limit != nil {
		named := typev3.RateLimitUnit_value[strings.ToUpper(from.Limit.Unit)] // 0, which is refused, for no unit
		d.limited, d.override = true, rules.Override{Requests: from.Limit.Requests, Unit: unit(named)}
	}
}

// answerOf is the answer to a call that was made.
func answerOf(h *held, v *verb) *heldJSON {
	out := &heldJSON{ID: h.hold.ID, Code: rules.OK.String(), Replayed: h.hold.Again, Capped: h.hold.Capped, Statuses: []statusJSON{}}
	if !v.answers {
		return out
	}
	out.Code, out.DeniedBy = h.response.Code.String(), h.response.DeniedBy()
	if d, _ := h.response.RetryAfter(); h.response.Code == rules.OverLimit && d != sluice.Never {
		seconds := d.Seconds()
		out.Wait = &seconds
	}
	for i := range h.response.Statuses {
		st := &h.response.Statuses[i]
		s := statusJSON{Code: st.Code.String()}
		if st.Rule != nil {
			s.Rule = st.Rule.Path()
		}
		if st.Limited {
			limit, remaining := st.Requests, st.Remaining
			s.Limit, s.Remaining = &limit, &remaining
		}
		out.Statuses = append(out.Statuses, s)
	}
	return out
}
