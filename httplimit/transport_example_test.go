package httplimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// Ten requests a second to each host, spread by waiting; servers that ask for a pause
// get it, and what they deny is sent again.
func ExampleNewTransport() {
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()

	transport, err := httplimit.NewTransport(nil, httplimit.TransportConfig{
		Limiter:     sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10)})),
		MaxWait:     time.Minute,
		MaxRetries:  3,
		BackoffBase: time.Millisecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "after", calls, "calls")
	// Output: 200 after 2 calls
}

// A request that may not wait fails, and says when it would be admitted.
func ExampleLimitError() {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	transport, err := httplimit.NewTransport(nil, httplimit.TransportConfig{
		Limiter:  sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1)})),
		FailFast: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	for range 2 {
		resp, err := client.Get(server.URL)
		var limited *httplimit.LimitError
		if errors.As(err, &limited) {
			fmt.Println("try again in", limited.RetryAfter.Round(time.Hour))
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 404
	// try again in 1h0m0s
}
