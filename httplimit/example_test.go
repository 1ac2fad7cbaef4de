package httplimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// byUser counts requests under the user of basic authentication.
var byUser = httplimit.ByBasicAuthUser()

// asUser sends a request of a user and returns the response.
func asUser(h http.Handler, user, password string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.SetBasicAuth(user, password)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Two a second and three an hour for each user, and what clients are told about it.
func ExampleNew() {
	clock := sluice.NewManualClock(time.Unix(1_700_000_000, 0)) // a server leaves it out
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "second", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(2), Clock: clock})), Key: byUser},
			{Name: "hour", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3), Clock: clock})), Key: byUser},
		},
		Headers: httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	for range 3 {
		w := asUser(handler, "ann", "secret")
		fmt.Println(w.Code, w.Header().Get("RateLimit"), w.Body)
	}
	// Output:
	// 200 "second";r=1;t=1, "hour";r=2;t=2400 hello
	// 200 "second";r=0;t=1, "hour";r=1;t=1200 hello
	// 429 "second";r=0;t=1, "hour";r=1;t=1200 {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["second"]}
}

// Only failed logins count: every login is charged when it begins, so that nobody can
// try many at the same time, and gets its charge back if it succeeds.
func ExampleConfig_settle() {
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "logins", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)})), Key: byUser},
		},
		Settle: func(_ *http.Request, status int) int {
			if status == http.StatusUnauthorized {
				return 1
			}
			return 0
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	login := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, password := range []string{"secret", "secret", "secret", "123456", "qwerty", "letmein"} {
		fmt.Println(password, asUser(login, "ann", password).Code)
	}
	// Output:
	// secret 200
	// secret 200
	// secret 200
	// 123456 401
	// qwerty 401
	// letmein 429
}

// Failed logins are limited by user, and all logins by address. Who is denied three times is banned for a day.
func ExamplePolicy_throttleThenBan() {
	failed := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)}))
	all := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)}))
	jail := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3), BlockFor: 24 * time.Hour}))
	limit := sluice.Must(httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "failed logins", Limiter: failed, Key: httplimit.ByBasicAuthUser(), Settle: func(_ *http.Request, status int) int {
				if status == http.StatusUnauthorized {
					return 1
				}
				return 0
			}},
			{Name: "logins", Limiter: all, Key: sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))},
			{Name: "jail", Limiter: jail, Key: httplimit.ByBasicAuthUser(), CountsDenialsOf: "failed logins"},
		},
		OnDecision: func(_ *http.Request, d httplimit.Decision) {
			if !d.Allowed {
				fmt.Println(d.Violated)
			}
		},
	}))
	login := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, password := range []string{"secret", "secret", "123456", "qwerty", "letmein", "monkey", "dragon"} {
		asUser(login, "ann", password)
	}
	fmt.Println(all.Key("192.0.2.1").Peek(0).Remaining, "logins left for the address")
	// Output:
	// [failed logins]
	// [failed logins]
	// [failed logins jail]
	// 96 logins left for the address
}

// A page instead of the problem document, and a line in the log.
func ExampleConfig_onDenied() {
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "users", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1)})), Key: byUser},
		},
		OnDecision: func(r *http.Request, d httplimit.Decision) {
			if !d.Allowed {
				fmt.Println("log:", r.URL.Path, d.Status, d.Violated)
			}
		},
		OnDenied: func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			if d.Status != http.StatusTooManyRequests { // a request without a user
				httplimit.WriteProblem(w, r, d)
				return
			}
			w.WriteHeader(d.Status)
			fmt.Fprintf(w, "Come back in %v.", d.RetryAfter.Round(time.Second))
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limit.Handler(http.NotFoundHandler())
	asUser(handler, "ann", "secret")
	fmt.Println(asUser(handler, "ann", "secret").Body)
	// Output:
	// log: / 429 [users]
	// Come back in 1m0s.
}

// A limit that comes with the request, as one that a customer has paid for does in a token
// whose signature a middleware in front has checked. Others have the limiter's.
func ExamplePolicy_limit() {
	type paid struct{} // the key in the request's context
	limit, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{{
		Name: "users", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1)})), Key: byUser,
		Limit: func(r *http.Request) (sluice.Limit, error) {
			limit, _ := r.Context().Value(paid{}).(sluice.Limit)
			return limit, nil // the zero Limit of those who have none
		},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limit.Handler(http.NotFoundHandler())
	authenticated := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, _ := r.BasicAuth(); user == "ann" {
			r = r.WithContext(context.WithValue(r.Context(), paid{}, sluice.PerHour(3)))
		}
		handler.ServeHTTP(w, r)
	})
	for _, user := range []string{"ann", "ann", "ann", "bob", "bob"} {
		fmt.Println(user, asUser(authenticated, user, "secret").Code != http.StatusTooManyRequests)
	}
	// Output:
	// ann true
	// ann true
	// ann true
	// bob true
	// bob false
}

// Requests over the limit wait, up to two for each user and for a minute at most, and pass one after another.
func ExampleQueue() {
	queue, err := httplimit.NewQueue(httplimit.QueueConfig{MaxWaiting: 1000, MaxPerKey: 2, MaxWait: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	users := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(20).WithBurst(1)}))
	limit := sluice.Must(httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "users", Limiter: users, Key: byUser}},
		Queue:    queue,
		Headers:  httplimit.Headers{ServerTiming: true},
	}))
	handler := limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { fmt.Println(asUser(handler, "ann", "secret").Code) })
	}
	all.Wait()
	// Output:
	// 200
	// 200
	// 200
}

// A key that is in the body, which a middleware must not read: the handler reads it, and then
// asks.
func ExampleJudge() {
	type login struct{ Name, Password string }
	type known struct{} // the key in the request's context
	judge, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{{
		Name: "logins", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)})),
		Key: func(r *http.Request) (string, error) { return r.Context().Value(known{}).(login).Name, nil },
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var l login
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&l); err != nil || len(l.Name) > 64 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		v := judge.Decide(w.Header(), r.WithContext(context.WithValue(r.Context(), known{}, l)))
		if !v.Allowed {
			v.Answer(w)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	for _, body := range []string{`{"name":"ann"}`, `{"name":"ann"}`, `{"name":"ann"}`, `{"name":"bob"}`} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(body)))
		fmt.Println(body, w.Code)
	}
	// Output:
	// {"name":"ann"} 401
	// {"name":"ann"} 401
	// {"name":"ann"} 429
	// {"name":"bob"} 401
}
