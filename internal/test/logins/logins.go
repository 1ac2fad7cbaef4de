// Package logins is the suite of the middlewares for frameworks: a login, of which three an hour may fail,
// behind each of them. Only their tests use it.
package logins

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// Config limits logins that fail to 3 an hour, and notes the statuses that Settle is told.
func Config(t *testing.T) (c httplimit.Config, told *[]int) {
	failed, err := sluice.New(sluice.Config{Limit: sluice.PerHour(3), Clock: sluice.NewManualClock(time.Now())})
	require.NoError(t, err)
	told = new([]int)
	return httplimit.Config{
		Policies: []httplimit.Policy{{Name: "logins", Limiter: failed, Key: httplimit.ByBasicAuthUser()}},
		Explain:  true,
		Settle: func(_ *http.Request, status int) int {
			if *told = append(*told, status); status == http.StatusOK {
				return 0
			}
			return -1
		},
	}, told
}

// Limited reports whether the limit has decided on the login of a request's context.
func Limited(ctx context.Context) bool {
	d, ok := httplimit.DecisionFromContext(ctx)
	return ok && d.Charges[0].Key == "bob"
}

// Right is the value of Authorization that lets bob in.
const Right = "Basic Ym9iOnNlY3JldA=="

// One connection a request, so that a server's shutdown waits for nobody.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func try(ctx context.Context, url, password string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth("bob", password)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}

// Fail makes a login that fails, and returns its status.
func Fail(t *testing.T, url string) int {
	t.Helper()
	resp, err := try(t.Context(), url, "guess")
	require.NoError(t, err)
	return resp.StatusCode
}
