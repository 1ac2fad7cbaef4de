package httprules_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/sluice-go/sluice/rules"
	"github.com/sluice-go/sluice/rules/httprules"
)

func ExampleNew() {
	set, err := rules.Load([]rules.File{{Name: "api.yaml", Data: []byte(`
domain: api
http:
- actions: [{request_headers: {header_name: x-api-key, descriptor_key: client}}]
descriptors:
- key: client
  rate_limit: {unit: hour, requests_per_unit: 2}
`)}}, rules.Options{})
	if err != nil {
		panic(err) // all that is wrong with the file, line by line
	}
	engine, err := rules.New(set, rules.Config{})
	if err != nil {
		panic(err)
	}
	limit, err := httprules.New(httprules.Config{Engine: engine, Domain: "api"})
	if err != nil {
		panic(err)
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))

	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Api-Key", "ann")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 200
	// 429
}
