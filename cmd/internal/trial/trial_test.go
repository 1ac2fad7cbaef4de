package trial

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

func engine(t *testing.T, limit int) *rules.Engine {
	set, err := rules.Load([]rules.File{{Name: "f", Data: fmt.Appendf(nil, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]\n", limit)}}, rules.Options{})
	require.NoError(t, err)
	e, err := rules.New(set, rules.Config{Clock: sluice.NewManualClock(time.Unix(1, 0))})
	require.NoError(t, err)
	return e
}

// TestTrial_Bounds: clients beyond a bound are counted, and not by themselves; so much is shown.
func TestTrial_Bounds(t *testing.T) {
	old, tried := engine(t, 5), New(engine(t, 0), true, true)
	var resp rules.Response
	for n := range maxClients + 7 {
		req := &rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "k", Value: fmt.Sprint(n)}}}}}
		for range 1 + n%2 {
			require.NoError(t, old.Decide(req, &resp))
			tried.Judge(req, &resp)
		}
	}
	r := tried.Result(90 * time.Second)
	require.EqualValues(t, maxClients+7+(maxClients+7)/2, r.KeptOut)
	require.Equal(t, r.KeptOut, r.Rules[0].KeptOut)
	require.Len(t, r.Clients, shown)
	require.EqualValues(t, 2, r.Clients[shown-1].KeptOut)
	require.Equal(t, maxClients-shown, r.MoreClients)
	require.Equal(t, `"k"="1"`, r.Clients[0].Name)
}

func TestResult_Text(t *testing.T) {
	var b strings.Builder
	r := Result{
		Seconds: 60.2, Calls: 1000, Denied: 3, WouldDeny: 4, KeptOut: 2, LetIn: 1, Rules: []Side{{"d.k", 2, 0}, {"d.o", 0, 1}},
		Clients: []Side{{"\"k\"=\"a\x1b\"", 2, 1}}, MoreClients: 1,
	}
	require.NoError(t, r.Text(&b, "http://localhost:6070"))
	require.Equal(t, `http://localhost:6070 answered 1000 calls in 1m0s, and denied 3. These rules would have denied 4, from the counts of the service on.

                      kept out  let in
               calls         2       1
            rule d.k         2       0
            rule d.o         0       1
  client "k"="a\x1b"         2       1
   and 1 more client                  

kept out: passed, and would be denied; let in: denied, and would pass
`, b.String())
}

// TestAsk_Refuses: what is no service has its error, and what a service refuses the service's.
func TestAsk_Refuses(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no, for a reason", http.StatusConflict) }))
	defer busy.Close()
	strange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	defer strange.Close()
	for base, want := range map[string]string{
		"http://":                        `"http://" is no address of a debug port; want one as http://127.0.0.1:6070`,
		"http://localhost:6070/rlconfig": `is no address of a debug port`,
		"http://u:p@localhost:6070":      `is no address of a debug port`,
		other.URL:                        "knows no /trial; want the debug port of a sluiced that has it, as http://127.0.0.1:6070",
		busy.URL:                         "no, for a reason",
		strange.URL:                      "is no result of a trial",
	} {
		_, err := Ask(t.Context(), base, nil, Order{For: Duration(time.Second)})
		assert.ErrorContains(t, err, want)
	}
}
