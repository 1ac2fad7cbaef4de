package service

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/trial"
	"github.com/sluice-go/sluice/rules"
)

// oneTrial is a trial that a test has begun.
type oneTrial struct {
	t      *testing.T
	s      *server
	result chan trial.Result
}

// begin begins a trial of rules, which goes on until end.
func begin(t *testing.T, s *server, text string) *oneTrial {
	t.Helper()
	debug := httptest.NewServer(s.debug())
	t.Cleanup(debug.Close)
	one := &oneTrial{t, s, make(chan trial.Result, 1)}
	go func() {
		result, err := trial.Ask(t.Context(), debug.URL, []rules.File{{Name: "new.yaml", Data: []byte(text)}}, trial.Order{For: trial.Duration(time.Hour)})
		if err != nil {
			t.Error(err)
		}
		one.result <- result
	}()
	require.Eventually(t, func() bool { return s.trial.Load() != nil }, 20*time.Second, time.Millisecond)
	return one
}

// end ends the trial with the service.
func (one *oneTrial) end() trial.Result {
	close(one.s.ending)
	select {
	case r := <-one.result:
		r.Seconds = 0
		return r
	case <-time.After(20 * time.Second):
		require.Fail(one.t, "the trial does not end")
		return trial.Result{}
	}
}

// ask asks for a client over HTTP, as a proxy does, and returns the status.
func (one *oneTrial) ask(client string) int {
	answer := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/check/d", nil)
	r.RemoteAddr = client + ":1"
	one.s.public().ServeHTTP(answer, r)
	return answer.Code
}

const limitOfTrial = "domain: d\nhttp: [{actions: [{remote_address: {}}]}]\ndescriptors:\n- {key: remote_address, rate_limit: {unit: day, requests_per_unit: "

// TestTrial: the rules on trial go on from the counts of the service, and change none of its answers.
func TestTrial(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		names bool
	}{"with names": {[]string{"--live-keys"}, true}, "without": {nil, false}} {
		t.Run(name, func(t *testing.T) {
			s, _ := still(t, limitOfTrial+"4}}\n", c.args...)
			one := &oneTrial{t: t, s: s}
			for range 2 {
				require.Equal(t, http.StatusNoContent, one.ask("192.0.2.1"))
			}
			one = begin(t, s, limitOfTrial+"3}}\n- {key: other, rate_limit: {unit: day, requests_per_unit: 1}}\n")
			for n := range 5 { // the third to the seventh
				want := http.StatusNoContent
				if n >= 2 {
					want = http.StatusTooManyRequests
				}
				require.Equal(t, want, one.ask("192.0.2.1"))
			}
			require.Equal(t, http.StatusNoContent, one.ask("192.0.2.2"))
			resp, err := s.service.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{descriptor("other", "x")}})
			require.NoError(t, err)
			require.Equal(t, pb.RateLimitResponse_OK, resp.OverallCode)
			got := one.end()
			require.Len(t, got.Clients, 1)
			if c.names {
				require.Equal(t, `d.remote_address "remote_address"="192.0.2.1"`, got.Clients[0].Name)
			} else {
				require.Regexp(t, "^d.remote_address [0-9a-f]{16}$", got.Clients[0].Name)
			}
			got.Clients[0].Name = "ann"
			require.Equal(t, trial.Result{
				Calls: 7, Denied: 3, WouldDeny: 4, KeptOut: 1,
				Rules: []trial.Side{{Name: "d.remote_address", KeptOut: 1}}, Clients: []trial.Side{{Name: "ann", KeptOut: 1}},
			}, got)
		})
	}
}

// TestTrial_Actions: a request to /check is described anew by the rules on trial, also one that the rules in force make nothing of, and
// counts for weights name no client.
func TestTrial_Actions(t *testing.T) {
	s, _ := still(t, "domain: d\nhttp: [{actions: [{request_headers: {header_name: x, descriptor_key: x}}]}]\ndescriptors: []\n", "--live-keys")
	one := begin(t, s, `domain: d
http: [{actions: [{remote_address: {}}, {generic_key: {descriptor_key: input, descriptor_value: "5"}}]}]
descriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 0, weights: {input: 1}}}]
`)
	for range 3 {
		require.Equal(t, http.StatusNoContent, one.ask("192.0.2.1"))
	}
	got := one.end()
	require.EqualValues(t, 3, got.Calls)
	require.Equal(t, []trial.Side{{Name: `d.remote_address "remote_address"="192.0.2.1"`, KeptOut: 3}}, got.Clients)
}

// TestTrial_LetsInByOtherActions: who is let in is named as the rules in force have described the request. A request that they make
// nothing of passes, also behind one that --shadow has let pass.
func TestTrial_LetsInByOtherActions(t *testing.T) {
	for _, args := range [][]string{{"--live-keys"}, {"--live-keys", "--shadow"}} {
		s, _ := still(t, "domain: d\nhttp: [{actions: [{request_headers: {header_name: x, descriptor_key: x}}]}]\n"+
			"descriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 0}}]\n", args...)
		one := begin(t, s, "domain: d\ndescriptors: []\n")
		for n := range 8 {
			r := httptest.NewRequest("GET", "/check/d", nil)
			if n%2 == 0 {
				r.Header.Set("x", "ann")
			}
			s.public().ServeHTTP(httptest.NewRecorder(), r)
		}
		got := one.end()
		require.Equal(t, []uint64{8, 4, 0, 4}, []uint64{got.Calls, got.Denied, got.WouldDeny, got.LetIn})
		require.Equal(t, []trial.Side{{Name: `d.x "x"="ann"`, LetIn: 4}}, got.Clients)
	}
}

// TestTrial_Bounds: the heaviest clients are found among more than are counted, and so many are shown.
func TestTrial_Bounds(t *testing.T) {
	s, _ := still(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]\n", "--live-keys")
	one := begin(t, s, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 0}}]\n")
	ask := func(value string) {
		_, err := s.service.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{descriptor("k", value)}})
		require.NoError(t, err)
	}
	for n := range 3 * countedKeys {
		ask(fmt.Sprint("n", n))
	}
	for range 9 {
		ask("heavy")
	}
	got := one.end()
	require.EqualValues(t, 3*countedKeys+9, got.KeptOut)
	require.Len(t, got.Clients, shownSides)
	require.Equal(t, countedKeys-shownSides, got.MoreClients)
	require.Equal(t, `d.k "k"="heavy"`, got.Clients[0].Name)
	require.GreaterOrEqual(t, got.Clients[0].KeptOut, uint64(9))
}

// TestTrial_LetsIn: calls that the rules in force deny, and the ones on trial would not; with --shadow, too.
func TestTrial_LetsIn(t *testing.T) {
	for _, args := range [][]string{nil, {"--shadow"}} {
		s, _ := still(t, limitOfTrial+"1}}\n", args...)
		one := begin(t, s, limitOfTrial+"3}}\n")
		for range 5 {
			one.ask("192.0.2.1")
		}
		got := one.end()
		require.Equal(t, []uint64{5, 4, 2, 0, 2}, []uint64{got.Calls, got.Denied, got.WouldDeny, got.KeptOut, got.LetIn})
		require.EqualValues(t, 2, got.Rules[0].LetIn)
	}
}

// TestTrial_Gone: a trial ends when whoever has asked goes, and another one can begin.
func TestTrial_Gone(t *testing.T) {
	s, _ := still(t, limitOfTrial+"1}}\n")
	debug := httptest.NewServer(s.debug())
	t.Cleanup(debug.Close)
	files := []rules.File{{Name: "new.yaml", Data: []byte(limitOfTrial + "3}}\n")}}
	hour := trial.Order{For: trial.Duration(time.Hour)}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() { _, err := trial.Ask(ctx, debug.URL, files, hour); gone <- err }()
		require.Eventually(t, func() bool { return s.trial.Load() != nil }, 20*time.Second, time.Millisecond)
		_, err := trial.Ask(t.Context(), debug.URL, files, hour)
		require.EqualError(t, err, "rules are on trial already; want one trial after the other")
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		require.Eventually(t, func() bool { return s.trial.Load() == nil }, 20*time.Second, time.Millisecond)
	}
}

// TestTrial_Refuses: bad orders get an error, and no other site gives any.
func TestTrial_Refuses(t *testing.T) {
	s, _ := still(t, limitOfTrial+"1}}\n")
	order := func(length time.Duration, data string) string {
		body, err := json.Marshal(trial.Order{For: trial.Duration(length), Files: []trial.File{{Name: "new.yaml", Data: data}}})
		require.NoError(t, err)
		return string(body)
	}
	for _, c := range []struct {
		body, origin string
		status       int
		want         string
	}{
		{"", "", 400, "the body is no order of a trial: EOF; want what sluice check --against sends"},
		{order(time.Hour, "domain: d\n") + "x", "", 400, "there is more behind it"},
		{"{}", "", 400, "0s is no time for a trial; want 1s to 1h0m0s"},
		{`{"for": "1m", "rules": []}`, "", 400, `unknown field "rules"`},
		{order(2*time.Hour, "domain: d\n"), "", 400, "2h0m0s is no time for a trial"},
		{order(time.Hour, "domain: d\ndescriptors: 5\n"), "", 422, "new.yaml:2:14: d: descriptors is 5; want a list of descriptors"},
		{order(time.Hour, "domain: d\n"), "https://example.com", 403, "not for other sites"},
	} {
		r := httptest.NewRequest("POST", "/trial", strings.NewReader(c.body))
		r.Host = "localhost"
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		s.debug().ServeHTTP(w, r)
		require.Equal(t, c.status, w.Code, c.body)
		require.Contains(t, w.Body.String(), c.want)
		require.Nil(t, s.trial.Load())
	}
}
