package redislimit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

// A Store has many limits. A call that several of them judge is one round trip.
func ExampleStore() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store, err := redislimit.NewStore(client, redislimit.StoreConfig{Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close(context.Background())
	requests, err := store.Limit(redislimit.LimitConfig{Name: "requests", Limit: sluice.PerSecond(10)})
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := store.Limit(redislimit.LimitConfig{Name: "tokens", Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(100_000)})
	if err != nil {
		log.Fatal(err)
	}

	// Before: a request, and a look at the tokens. Afterwards: the tokens it has taken, whether they were there or not.
	before := []redislimit.StoreCall{
		{Limit: requests, Key: "user:42", Cost: 1},
		{Limit: tokens, Key: "user:42", Cost: 1, Op: redislimit.OpPeek},
	}
	results := make([]redislimit.StoreResult, len(before))
	if err := store.Do(context.Background(), before, results); err != nil {
		log.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil || !r.Decision.Allowed {
			fmt.Println("denied by", before[i].Limit.Limit(), r.Decision.RetryAfter, r.Err)
			return
		}
	}
	after := []redislimit.StoreCall{{Limit: tokens, Key: "user:42", Cost: 1875, Op: redislimit.OpDebit}}
	if err := store.Do(context.Background(), after, results[:1]); err != nil {
		log.Fatal(err)
	}
	fmt.Println("tokens in this minute:", results[0].Count)
}
