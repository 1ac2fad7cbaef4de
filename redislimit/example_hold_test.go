package redislimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

// A call of a language model holds an estimate of its tokens, together with its request, and settles what it has used. Any
// process can settle it.
func Example_hold() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store, err := redislimit.NewStore(client, redislimit.StoreConfig{Prefix: "rl:llm"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close(context.Background())
	requests, err := store.Limit(redislimit.LimitConfig{Name: "requests", Tag: "llm", Limit: sluice.PerMinute(60)})
	if err != nil {
		log.Fatal(err)
	}
	tokens, err := store.Limit(redislimit.LimitConfig{Name: "tokens", Tag: "llm", Limit: sluice.PerMinute(100_000), MaxHolds: 10_000})
	if err != nil {
		log.Fatal(err)
	}

	results := make([]redislimit.StoreResult, 2)
	d, err := store.DoAll(context.Background(), []redislimit.StoreCall{
		{Limit: requests, Key: "user:42", Cost: 1},
		{Limit: tokens, Key: "user:42", Cost: 4000, Op: redislimit.OpHold, TTL: 5 * time.Minute},
	}, results)
	if err != nil || !d.Allowed {
		fmt.Println("denied for", d.RetryAfter, err)
		return
	}
	used := 1875 // by the call of the model
	err = store.Do(context.Background(), []redislimit.StoreCall{
		{Limit: tokens, Key: "user:42", Cost: used, Op: redislimit.OpSettle, HoldID: results[1].HoldID, TTL: 5 * time.Minute},
	}, results[:1])
	if err != nil || results[0].Err != nil {
		log.Fatal(err, results[0].Err)
	}
}
