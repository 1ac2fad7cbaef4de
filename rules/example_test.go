package rules_test

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

func Example() {
	set, err := rules.Load([]rules.File{{Name: "api.yaml", Data: []byte(`
domain: api
descriptors:
- key: client
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: client
  value: internal-*
  rate_limit: {unlimited: true}
`)}}, rules.Options{})
	if err != nil {
		fmt.Println(err) // a line for each mistake
		return
	}
	clock := sluice.NewManualClock(time.Unix(90, 0))
	engine, err := rules.New(set, rules.Config{Clock: clock})
	if err != nil {
		fmt.Println(err)
		return
	}
	var resp rules.Response
	for _, client := range []string{"ann", "ann", "ann", "internal-billing"} {
		req := rules.Request{Domain: "api", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "client", Value: client}}}}}
		if err := engine.Decide(&req, &resp); err != nil {
			fmt.Println(err)
			return
		}
		st := resp.Statuses[0]
		fmt.Println(client, resp.Code, st.Rule.Path(), st.RetryAfter)
	}
	// Output:
	// ann OK api.client 0s
	// ann OK api.client 0s
	// ann OVER_LIMIT api.client 30s
	// internal-billing OK api.client_internal-* 0s
}
