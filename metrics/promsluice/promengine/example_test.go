package promengine_test

import (
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/metrics/promsluice/promengine"
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
	prometheus.MustRegister(promengine.New(engine)) // and then promhttp.Handler() tells it

	req := rules.Request{Domain: "api", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "client", Value: "ann"}}}}}
	if err := engine.Decide(&req, new(rules.Response)); err != nil {
		log.Fatal(err)
	}

	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sluice_hits_total" {
			for _, m := range f.GetMetric() {
				fmt.Println(m.GetLabel()[1].GetValue(), m.GetLabel()[2].GetValue(), m.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// near api.client 0
	// over api.client 0
	// shadow api.client 0
	// within api.client 1
}
