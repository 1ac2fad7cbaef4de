package trial

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestResult_Text(t *testing.T) {
	var b strings.Builder
	r := Result{
		Seconds: 60.2, Calls: 1000, Denied: 3, WouldDeny: 4, KeptOut: 2, LetIn: 1, Rules: []Side{{"d.k", 2, 0}, {"d.o", 0, 1}},
		Clients: []Side{{"\"k\"=\"a\x1b\"", 2, 1}}, MoreClients: 1, Anew: []string{"d", "e"},
	}
	require.NoError(t, r.Text(&b, "http://localhost:6070"))
	require.Equal(t, `http://localhost:6070 answered 1000 calls in 1m0s, and denied 3. These rules would have denied 4, from the counts of the service on.

  the counts of d, e began at 0
                      kept out  let in
               calls         2       1
            rule d.k         2       0
            rule d.o         0       1
  client "k"="a\x1b"         2       1
   and 1 more client                  

kept out: passed, and would be denied; let in: denied, and would pass
`, b.String())
}

// TestAsk_Refuses: each answer that is no result is an error. Where a service refuses, the error is the service's text.
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
