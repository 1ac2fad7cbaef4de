package service

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/surfaces"
	"github.com/sluice-go/sluice/rules"
)

// TestSurface_Check: a proxy asks /check/d for each request, and passes on what may pass.
func TestSurface_Check(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			file := surfaces.RuleFile(s)
			if _, err := rules.Load([]rules.File{{Name: "rules.yaml", Data: []byte(file)}}, rules.Options{}); err != nil {
				return surfaces.Door{}, err
			}
			server, _ := still(t, file)
			s.Clock = server.manual
			public, behind := server.public(), surfaces.NewHandler(s)
			ask := func() *httptest.ResponseRecorder {
				answer := httptest.NewRecorder()
				public.ServeHTTP(answer, httptest.NewRequest("GET", "/check/d", nil))
				return answer
			}
			for _, p := range s.Policies { // that are refused as late as that
				if p.Config.Algorithm == sluice.InFlight {
					answer := ask()
					require.Equal(t, http.StatusNotImplemented, answer.Code)
					return surfaces.Door{}, errors.New(answer.Body.String())
				}
			}
			proxy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer := ask()
				if answer.Code == http.StatusNoContent {
					behind.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Retry-After", answer.Header().Get("Retry-After"))
				w.WriteHeader(answer.Code)
			})
			url := surfaces.Listen(t, surfaces.Around(s, proxy))
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, url), Remaining: func(p *surfaces.Policy) int { return remainingOf(t, server, p) }}, nil
		},
		Cannot: map[string]string{
			"error that nobody answers":                    "a proxy answers errors",
			"client gone and an error that nobody answers": "a proxy answers errors",
			"streaming after the handler":                  "a proxy's request ends with its response",
			"shadow whose Key fails":                       "there are no functions",
			"Key fails":                                    "there are no functions",
			"shadow in flight":                             "a rule in shadow mode denies nobody, so /check counts what it cannot give back, and the log says so: see TestCheck_InFlight",
			"settled: ":                                    "there are no functions",
			"queue":                                        "rules deny at once: a proxy that asks does not wait",
			"remote":                                       "a Store of rules is one: see rules/countertest",
			"limit that calls bring":                       "overrides of descriptors are: see rules/countertest",
			"panics in ":                                   "there are no functions",
			"algorithm token-interval":                     "rules have no such algorithm",
			"algorithm fixed-first-charge":                 "rules have no such algorithm",
		},
		Each:    true,
		Refuses: "/hold",
	}.Test(t)
}

// remainingOf is what a look says remains to a rule of the client of httptest.NewRequest.
func remainingOf(t *testing.T, s *server, p *surfaces.Policy) int {
	var none uint64
	var resp rules.Response
	req := rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{
		Entries: []rules.Entry{{Key: p.Name, Value: p.Name}, {Key: "remote_address", Value: "192.0.2.1"}}, Hits: &none,
	}}}
	require.NoError(t, s.engine.Decide(&req, &resp))
	return int(resp.Statuses[0].Remaining)
}
