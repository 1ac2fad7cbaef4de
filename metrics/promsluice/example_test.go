package promsluice_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics/promsluice"
)

func Example() {
	login := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3), Stats: true}))
	collector, err := promsluice.New(login.Metrics("login"))
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer, which has the process's metrics, too
	registry.MustRegister(collector)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	for range 5 {
		login.Allow("user:42")
	}

	resp, err := http.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	var text strings.Builder
	if err := resp.Write(&text); err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, "sluice_decisions_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// sluice_decisions_total{limiter="login",outcome="admitted"} 3
	// sluice_decisions_total{limiter="login",outcome="blocked"} 0
	// sluice_decisions_total{limiter="login",outcome="denied"} 2
}
