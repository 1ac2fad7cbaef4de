package otelsluice_test

import (
	"context"
	"fmt"
	"log"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics/otelsluice"
)

func Example() {
	reader := sdk.NewManualReader() // or an exporter, such as Prometheus' or OTLP's
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	collector := otelsluice.New(otelsluice.Config{MeterProvider: provider})
	login := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3), Stats: true}))
	if err := collector.Add(login.Metrics("login")); err != nil {
		log.Fatal(err)
	}

	for range 5 {
		login.Allow("user:42")
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "sluice.limiter.keys" {
			fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value)
		}
	}
	// Output: sluice.limiter.keys 1
}
