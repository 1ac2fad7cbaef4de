package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/rls/holdpb"
)

type verb int

const (
	hold verb = iota
	extend
	settle
	release
	verbs
)

type outcome int

const (
	unknown outcome = iota // no answer, or that the store has not answered
	done
	denied
	gone // there is no such hold
)

// A holdCall is one try of a call of a stream.
type holdCall struct {
	verb       verb
	step       int
	tokens     uint64 // held, asked for, or used in all
	outcome    outcome
	replayed   bool // it is done, and an earlier call has done it
	sent, back time.Time
	by         *instance
}

// A stream is one client's, from its hold to its end.
type stream struct {
	id, user string
	r        *rand.Rand
	estimate uint64
	grows    []uint64
	used     uint64 // in all
	giveBack bool
	releases bool
	dies     int  // at this of its calls, or never if it is -1
	abruptly bool // between the call and its answer

	made  int // calls so far, tries that repeat one not counted
	calls []holdCall
	fault error // an answer that there must not be
}

func newStream(i int, r *rand.Rand, dies bool) *stream {
	s := &stream{id: fmt.Sprint("s", i), user: fmt.Sprint("u", i%streamUsers), r: r, dies: -1}
	s.estimate = 50 + r.Uint64N(200)
	held := s.estimate
	for range r.IntN(4) {
		n := 20 + r.Uint64N(150)
		s.grows, held = append(s.grows, n), held+n
	}
	s.used = r.Uint64N(held)
	if s.user != tightUser && r.IntN(5) == 0 { // the estimate was too small; what is beyond a tight limit could not be seen
		s.used = held + r.Uint64N(300)
	}
	s.giveBack, s.releases = r.IntN(3) == 0, r.IntN(8) == 0
	if dies {
		s.dies, s.abruptly = r.IntN(2+len(s.grows)), r.IntN(2) == 0
	}
	return s
}

// live is all that the client does.
func (s *stream) live(f *streaming) {
	if !s.begin(f) {
		return
	}
	for i, n := range s.grows {
		s.pause(400)
		switch out, alive := s.call(f, extend, i, n, streamTTL/2); {
		case !alive || out == unknown || out == gone:
			return
		case out == denied: // it is cut
			s.used = min(s.used, s.estimate)
			s.end(f)
			return
		}
	}
	s.pause(400)
	s.end(f)
}

// begin holds, and tries a few times again if it is denied.
func (s *stream) begin(f *streaming) bool {
	tries := 12
	if s.user == tightUser { // waiting does not help
		tries = 2
	}
	for range tries {
		out, alive := s.call(f, hold, 0, s.estimate, streamTTL/2)
		if !alive || out == done {
			return alive && out == done
		}
		if out != denied || s.calls[0].sent.Before(time.Now().Add(-streamTTL/2)) {
			return false
		}
		s.pause(300)
		s.made-- // it is the same call
	}
	return false
}

func (s *stream) end(f *streaming) {
	if s.releases {
		s.call(f, release, 0, 0, streamTTL)
	} else {
		s.call(f, settle, 0, s.used, streamTTL)
	}
}

func (s *stream) pause(most int) { time.Sleep(time.Duration(s.r.IntN(most)) * time.Millisecond) }

// call makes a call, at any replica, and again until one answers, or for a time. It is false if the client dies.
func (s *stream) call(f *streaming, v verb, step int, tokens uint64, patience time.Duration) (out outcome, alive bool) {
	dies := s.made == s.dies
	s.made++
	if dies && !s.abruptly {
		return unknown, false
	}
	for end := time.Now().Add(patience); time.Now().Before(end); s.pause(30) {
		in := f.replicas[s.r.IntN(streamServices)].Load()
		c := holdCall{verb: v, step: step, tokens: tokens, sent: time.Now(), by: in}
		if s.r.IntN(2) == 0 {
			c.outcome = in.overHTTP(s, &c, dies)
		} else {
			c.outcome = in.overGRPC(s, &c, dies)
		}
		c.back = time.Now()
		s.calls = append(s.calls, c)
		in.count(&c)
		if dies {
			return unknown, false
		}
		if c.outcome != unknown {
			return c.outcome, true
		}
	}
	return unknown, true
}

func (in *instance) count(c *holdCall) {
	switch c.outcome {
	case done:
		if !c.replayed { // an earlier call has done it, perhaps at another service
			in.done[c.verb].Add(1)
		}
	case denied:
		in.denied[c.verb].Add(1)
	case gone:
		in.gone[c.verb].Add(1)
	default:
		in.unknown[c.verb].Add(1)
	}
}

// limits are the keys and values of the limits, with the hits of a call for each.
func (s *stream) limits(c *holdCall) (keys, values []string, hits []uint64) {
	one := uint64(1)
	if c.verb == extend {
		one = 0
	}
	return []string{"requests", "tokens", "streams", "own"}, []string{s.user, s.user, s.user, s.id}, []uint64{one, c.tokens, one, c.tokens}
}

// tryFor is how long one try may take.
const tryFor = time.Second

var streamHTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}

func (in *instance) overHTTP(s *stream, c *holdCall, dies bool) outcome {
	body := map[string]any{"domain": "streams", "id": s.id}
	var descriptors []map[string]any
	keys, values, hits := s.limits(c)
	for i, key := range keys {
		d := map[string]any{"entries": []map[string]string{{"key": key, "value": values[i]}}}
		if c.verb != release {
			d["hits"] = hits[i]
		}
		descriptors = append(descriptors, d)
	}
	body["descriptors"] = descriptors
	switch c.verb {
	case hold:
		body["ttl"], body["give_back"] = streamTTL.String(), s.giveBack
	case extend:
		body["ttl"], body["step"] = streamTTL.String(), fmt.Sprint(c.step)
	}
	text, _ := json.Marshal(body)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	if dies { // once the call is on its way
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { cancel() }})
	}
	path := "http://" + in.Addresses["http"] + []string{"/hold", "/extend", "/settle", "/release"}[c.verb]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(text))
	if err != nil {
		return unknown
	}
	resp, err := streamHTTP.Do(req)
	if err != nil {
		return unknown
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return unknown
	case resp.StatusCode == http.StatusOK:
		var held struct{ Replayed bool }
		if err := json.Unmarshal(answer, &held); err != nil {
			s.fault = fmt.Errorf("%s is answered %q: %w", path, answer, err)
		}
		c.replayed = held.Replayed
		return done
	case resp.StatusCode == http.StatusTooManyRequests:
		return denied
	case resp.StatusCode == http.StatusNotFound:
		return gone
	case resp.StatusCode != http.StatusServiceUnavailable:
		s.fault = fmt.Errorf("%s is answered %d: %s", path, resp.StatusCode, answer)
	}
	return unknown
}

func (in *instance) overGRPC(s *stream, c *holdCall, dies bool) outcome {
	wait := tryFor
	if dies {
		wait = time.Duration(s.r.IntN(3000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var descriptors []*holdpb.Descriptor
	keys, values, hits := s.limits(c)
	for i, key := range keys {
		d := &holdpb.Descriptor{Entries: []*holdpb.Descriptor_Entry{{Key: key, Value: values[i]}}}
		d.HitsAddend = wrapperspb.UInt64(hits[i])
		descriptors = append(descriptors, d)
	}
	invoke := func(method string, in2, out any) error {
		return in.conn.Invoke(ctx, "/sluice.ratelimit.v1.HoldService/"+method, in2, out)
	}
	out, code := done, holdpb.Code_OK
	var err error
	switch ttl := durationpb.New(streamTTL); c.verb {
	case hold:
		answer := new(holdpb.ReserveResponse)
		err = invoke("Reserve", &holdpb.ReserveRequest{Domain: "streams", Descriptors: descriptors, Ttl: ttl, IdempotencyKey: s.id, GiveBack: s.giveBack}, answer)
		code, c.replayed = answer.Code, answer.Replayed
	case extend:
		answer := new(holdpb.ExtendResponse)
		err = invoke("Extend", &holdpb.ExtendRequest{Domain: "streams", Descriptors: descriptors, ReservationId: s.id, Ttl: ttl, IdempotencyKey: fmt.Sprint(c.step)}, answer)
		code, c.replayed = answer.Code, answer.Replayed
	case settle:
		answer := new(holdpb.CommitResponse)
		err = invoke("Commit", &holdpb.CommitRequest{Domain: "streams", Descriptors: descriptors, ReservationId: s.id}, answer)
		if c.replayed = answer.Replayed; !answer.ReservationReleased {
			out = gone
		}
	default:
		answer := new(holdpb.ReleaseResponse)
		err = invoke("Release", &holdpb.ReleaseRequest{Domain: "streams", Descriptors: descriptors, ReservationId: s.id}, answer)
		c.replayed = answer.Replayed
	}
	switch {
	case status.Code(err) == codes.NotFound:
		return gone
	case err == nil && code == holdpb.Code_OVER_LIMIT:
		return denied
	case err == nil:
		return out
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
	default:
		s.fault = fmt.Errorf("%w, over gRPC", err)
	}
	return unknown
}

// counts looks at the counts of each limit, by key and value.
func (s *streaming) counts() (counts map[[2]string]uint64, err error) {
	var asked [][2]string
	for u := range streamUsers {
		user := fmt.Sprint("u", u)
		asked = append(asked, [2]string{"tokens", user}, [2]string{"streams", user})
	}
	for _, st := range s.streams {
		asked = append(asked, [2]string{"own", st.id})
	}
	counts = map[[2]string]uint64{}
	const batch = 100
	for ; len(asked) > 0; asked = asked[min(batch, len(asked)):] {
		part := asked[:min(batch, len(asked))]
		r := &pb.RateLimitRequest{Domain: "streams"}
		for _, a := range part {
			r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: a[0], Value: a[1]}}, HitsAddend: wrapperspb.UInt64(0)})
		}
		var answer *pb.RateLimitResponse
		ask := func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			answer, err = s.replicas[0].Load().client.ShouldRateLimit(ctx, r)
			return err == nil
		}
		if never := eventually("the store tells what counts", ask); never != nil {
			return nil, fmt.Errorf("%w: %w", never, err)
		}
		for i, st := range answer.Statuses {
			counts[part[i]] = uint64(st.CurrentLimit.RequestsPerUnit - st.LimitRemaining)
		}
	}
	return counts, nil
}
