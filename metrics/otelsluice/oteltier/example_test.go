package oteltier_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics/otelsluice/oteltier"
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

	reader := sdk.NewManualReader() // or an exporter, such as Prometheus' or OTLP's
	collector, err := oteltier.New(oteltier.Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
	if err != nil {
		log.Fatal(err)
	}
	if err := collector.Add("api", tier); err != nil {
		log.Fatal(err)
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "sluice.tier.degraded" {
			fmt.Println(m.Name, m.Data.(metricdata.Gauge[int64]).DataPoints[0].Value)
		}
	}
	// Output: sluice.tier.degraded 0
}
