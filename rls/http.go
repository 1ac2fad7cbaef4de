package rls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// JSON answers requests in the JSON form of the protocol: 200 for OK, 429 for OVER_LIMIT, both with
// the answer, and 400 for a request that is refused. The method does not matter. A body has Options.MessageTime to come, or gets 408;
// where too many large ones are under way it gets 503, with Retry-After.
func (s *Service) JSON() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, taken, err := s.body(w, r)
		defer s.bodies.give(taken)
		var out []byte
		var code pb.RateLimitResponse_Code
		if err == nil {
			out, code, err = s.answerJSON(r.Context(), body)
		}
		if errors.Is(err, errBusy) {
			refuseBusy(w, err)
			return
		}
		if err != nil {
			code := http.StatusBadRequest // whatever is wrong, as upstream has it
			if errors.Is(err, os.ErrDeadlineExceeded) {
				code = http.StatusRequestTimeout
			}
			http.Error(w, http.StatusText(code), code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if code == pb.RateLimitResponse_OVER_LIMIT {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(out)
	})
}

// answerJSON answers a request in JSON.
func (s *Service) answerJSON(ctx context.Context, body []byte) (out []byte, code pb.RateLimitResponse_Code, err error) {
	entered, err := s.enter(len(body))
	if err != nil {
		return nil, 0, err
	}
	defer s.leave(entered)
	var req pb.RateLimitRequest
	if err = s.options.jsonFits(body); err == nil {
		err = protojson.Unmarshal(body, &req)
	}
	if err != nil {
		s.refused.Add(1)
		return nil, 0, err
	}
	resp, err := s.ShouldRateLimit(ctx, &req)
	if err != nil {
		return nil, 0, err
	}
	out, err = protojson.Marshal(resp)
	return out, resp.OverallCode, err
}

// Load is how the last load of rules went.
type Load struct {
	At  time.Time // of the last one that was fine
	Err error     // why the last one was refused; nil if it was fine
}

// rulesJSON is the JSON form of Rules.
type rulesJSON struct {
	Generation uint64    `json:"generation"`
	Digest     string    `json:"digest"`
	Loaded     time.Time `json:"loaded"`
	LastError  string    `json:"last_error,omitempty"`
	Rules      []string  `json:"rules"`
}

// Rules tells the rules in force, a line each, sorted; and in comments below them which set they
// are, and why the last one was refused, if it was. format=json in the query makes it JSON.
func (s *Service) Rules(last func() Load) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		set, number := s.engine.Set()
		load := last()
		out := rulesJSON{Generation: number, Digest: set.Digest(), Loaded: load.At.UTC(), Rules: []string{}}
		for _, rule := range set.Rules() {
			out.Rules = append(out.Rules, rule.String())
		}
		if load.Err != nil {
			out.LastError = load.Err.Error()
		}
		if r.URL.Query().Get("format") == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, rule := range out.Rules {
			fmt.Fprintln(w, oneLine(rule))
		}
		fmt.Fprintf(w, "# generation %d, digest %s, %d rules, loaded at %s\n", number, out.Digest, len(out.Rules), out.Loaded.Format(time.RFC3339))
		for line := range strings.Lines(out.LastError) {
			fmt.Fprintf(w, "# the last load was refused: %s\n", oneLine(strings.TrimSpace(line)))
		}
	})
}

// oneLine escapes characters that could end a line, or make a terminal show another one: names in rules are any text.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Health answers health checks, over gRPC for the services "" and "ratelimit", and over HTTP. It
// starts out not serving.
type Health struct {
	server *health.Server
	mutex  sync.Mutex // held by Set, so that both names say the same in the end
}

// NewHealth returns a Health that is not serving yet.
func NewHealth() *Health {
	h := &Health{server: health.NewServer()}
	h.Set(false)
	return h
}

// Server is registered on a gRPC server.
func (h *Health) Server() healthpb.HealthServer { return h.server }

// Set says whether the process serves. It is safe for concurrent use.
func (h *Health) Set(serving bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus("", status)
	h.server.SetServingStatus("ratelimit", status)
}

// Shutdown says that the process does not serve, and that no Set changes that any more.
func (h *Health) Shutdown() { h.server.Shutdown() }

// ServeHTTP answers 200 OK, or 500 with nothing.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := h.server.Check(r.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
}
