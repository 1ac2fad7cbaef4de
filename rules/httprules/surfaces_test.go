package httprules

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
	"github.com/sluice-go/sluice/rules"
)

func TestSurface(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			set, err := rules.Load([]rules.File{{Name: "rules.yaml", Data: []byte(surfaces.RuleFile(s))}}, rules.Options{})
			if err != nil {
				return surfaces.Door{}, err
			}
			engine, err := rules.New(set, rules.Config{Clock: s.Clock})
			require.NoError(t, err)
			proxied := func(*http.Request) (string, error) { return "", nil }
			if s.Functions["OnMissingHeader"] {
				proxied = sluice.Must(httplimit.ByRemoteIP(s.Proxied()))
			}
			c := Config{Engine: engine, Domain: "d", Client: func(r *http.Request) (string, error) {
				if err := s.Called("Client"); err != nil {
					return "", err
				}
				if _, err := proxied(r); err != nil {
					return "", err
				}
				return s.Policies[len(s.Policies)-1].Key() // of all rules
			}}
			if s.Functions["OnDenied"] {
				c.OnDenied = func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
					_ = s.Called("OnDenied")
					httplimit.WriteProblem(w, r, d)
				}
			}
			if s.Functions["OnDecision"] {
				c.OnDecision = func(http.ResponseWriter, *http.Request, *rules.Response) { _ = s.Called("OnDecision") }
			}
			limit, err := New(c)
			if err != nil {
				return surfaces.Door{}, err
			}
			url := surfaces.Listen(t, surfaces.Around(s, limit(surfaces.NewHandler(s))))
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, url), Remaining: func(p *surfaces.Policy) int { return remaining(t, engine, p) }}, nil
		},
		Cannot: map[string]string{
			"error that nobody answers":                    "handlers of net/http return none",
			"client gone and an error that nobody answers": "handlers of net/http return none",
			"streaming after the handler":                  "a response ends with its handler, unless that has hijacked the connection",
			"shadow whose Key fails":                       "a client is that of all rules",
			"outlasts the lease":                           "what is held lapses after one Period of the engine's clock, and is prolonged in real time: see TestInFlight_LongRequests",
			"settled: ":                                    "there is no Settle",
			"queue":                                        "rules deny at once",
			"remote":                                       "a Store of rules is one: see rules/countertest",
			"limit that calls bring":                       "overrides of descriptors are: see rules/countertest",
			"panics in Settle":                             "there is none",
			"panics in Cost":                               "there is none",
			"panics in Limit":                              "there is none",
			"panics in Skip":                               "there is none",
			"panics in Charges":                            "there are none",
			"panics in PartitionKey":                       "there is none",
			"algorithm token-interval":                     "rules have no such algorithm",
			"algorithm fixed-first-charge":                 "rules have no such algorithm",
		},
		Each: true,
	}.Test(t)
}

// remaining is what a look says remains to a rule.
func remaining(t *testing.T, engine *rules.Engine, p *surfaces.Policy) int {
	var none uint64
	var resp rules.Response
	req := rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{
		Entries: []rules.Entry{{Key: p.Name, Value: p.Name}, {Key: "remote_address", Value: surfaces.Key}}, Hits: &none,
	}}}
	require.NoError(t, engine.Decide(&req, &resp))
	return int(resp.Statuses[0].Remaining)
}
