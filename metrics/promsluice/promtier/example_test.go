package promtier_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics/promsluice/promtier"
	"github.com/sluice-go/sluice/redislimit"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(1000), Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	tier, err := redislimit.NewTier(limiter, redislimit.TierConfig{Replicas: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer tier.Close(context.Background())

	collector := promtier.New()
	if err := collector.Add("api", tier); err != nil {
		log.Fatal(err)
	}
	prometheus.MustRegister(collector)
	http.Handle("/metrics", promhttp.Handler())

	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sluice_tier_degraded" {
			m := f.GetMetric()[0]
			fmt.Println(f.GetName(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
		}
	}
	// Output: sluice_tier_degraded api 0
}
