package service

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/cmd/internal/trial"
)

// public returns the handler of the HTTP port.
func (s *server) public() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/json", ownSite(timed(s.metrics.http, s.service.JSON()), byNobody))
	holds := ownSite(timed(s.metrics.http, s.service.Holds()), byNobody)
	for _, path := range []string{"/hold", "/extend", "/settle", "/release"} {
		mux.Handle(path, holds)
	}
	check := ownSite(timed(s.metrics.check, s.checker), s.byProxy)
	mux.Handle("/check", check)
	mux.Handle("/check/{domain...}", check)
	mux.Handle("/healthcheck", s.health)
	return s.certified(mux)
}

// timed records in the metrics how long a handler took.
func timed(times prometheus.Observer, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		h.ServeHTTP(w, r)
		times.Observe(time.Since(begin).Seconds())
	})
}

const debugIndex = `/rlconfig: the rules in force, and why others are not; ?format=json
/stats: the statistics, by upstream's names
/live: what is admitted and denied now, as a page
/reset: POST {"domain": ..., "descriptors": [...]} as JSON makes keys fresh, as sluiced ask --reset does
/trial: POST rules, as sluice check --against does, and who would change sides under them
/debug/pprof/: profiles of this process
`

// debug returns the handler of the debug port.
func (s *server) debug() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/rlconfig", s.service.Rules(s.loads.report))
	mux.HandleFunc("/stats", s.stats)
	mux.Handle("/reset", s.service.ResetKeys())
	mux.HandleFunc("POST "+trial.Path, s.trialOf)
	mux.HandleFunc("GET /live", s.live.page)
	mux.HandleFunc("GET /live/{file}", s.live.page)
	mux.HandleFunc("GET /live/events", s.live.events)
	mux.HandleFunc("GET /live/history", s.live.past)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	// Not pprof.Cmdline: the command line may have a password of --redis.
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, debugIndex) })
	if s.manual != nil {
		mux.HandleFunc("POST /clock", s.setClock)
	}
	return s.ownHost(ownSite(mux, toPage))
}

// setClock moves the clock of decisions: the body is Unix milliseconds, never earlier than before.
func (s *server) setClock(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	ms, parseErr := strconv.ParseInt(strings.TrimSpace(string(body)), 10, 64)
	if err != nil || parseErr != nil || ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		http.Error(w, "want Unix milliseconds, a whole number from 0", http.StatusBadRequest)
		return
	}
	s.clockMutex.Lock()
	defer s.clockMutex.Unlock()
	t := time.UnixMilli(ms)
	if t.UnixNano() < s.manual.Now() {
		http.Error(w, fmt.Sprintf("the clock is at %d already, and never goes back", s.manual.Now()/int64(time.Millisecond)), http.StatusConflict)
		return
	}
	s.manual.Set(t)
	w.WriteHeader(http.StatusNoContent)
}
