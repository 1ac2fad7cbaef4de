package redislimit_test

import (
	"context"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/redislimit"
)

// Both are what the policies of httplimit can count by.
var (
	_ httplimit.Remote = (*redislimit.Limiter)(nil)
	_ httplimit.Remote = (*redislimit.Tier)(nil)
)

// Every client gets 50 requests a second from each replica, and 1,000 an hour from all of them
// together. The first limit is decided in the process, so that a flood does not reach Redis.
func Example_http() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	shared, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(1000), Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	hourly, err := redislimit.NewTier(shared, redislimit.TierConfig{Replicas: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer hourly.Close(context.Background())
	perSecond := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(50)}))
	byIP := sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))
	limit, err := httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "per-second", Limiter: perSecond, Key: byIP},
			{Name: "per-hour", Remote: hourly, Key: byIP},
		},
		OnDecision: func(r *http.Request, d httplimit.Decision) {
			if d.RemoteError != nil { // never of a Tier with LocalShare, unless the client has gone
				log.Print(d.RemoteError)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	log.Print(http.ListenAndServe("localhost:8080", limit.Handler(hello)))
}
