package otelengine_test

import (
	"context"
	"fmt"
	"log"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice/metrics/otelsluice/otelengine"
	"github.com/sluice-go/sluice/rules"
)

func Example() {
	set, err := rules.Load([]rules.File{{Name: "api.yaml", Data: []byte(`
domain: api
descriptors:
- key: client
  rate_limit: {unit: minute, requests_per_unit: 2}
`)}}, rules.Options{})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := rules.New(set, rules.Config{})
	if err != nil {
		log.Fatal(err)
	}
	reader := sdk.NewManualReader() // or an exporter, such as Prometheus' or OTLP's
	if _, err := otelengine.New(engine, otelengine.Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))}); err != nil {
		log.Fatal(err)
	}

	req := rules.Request{Domain: "api", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "client", Value: "ann"}}}}}
	if err := engine.Decide(&req, new(rules.Response)); err != nil {
		log.Fatal(err)
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "sluice.requests" {
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				if code, _ := p.Attributes.Value("code"); code.AsString() == "ok" {
					fmt.Println(m.Name, code.AsString(), p.Value)
				}
			}
		}
	}
	// Output: sluice.requests ok 1
}
