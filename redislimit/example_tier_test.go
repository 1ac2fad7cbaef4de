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

func ExampleTier() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(1000).WithBurst(20), Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	tier, err := redislimit.NewTier(limiter, redislimit.TierConfig{
		Replicas: 8,
		Budget:   5 * time.Millisecond,
		OnMode:   func(mode redislimit.Mode, cause error) { log.Println("rate limits:", mode, cause) },
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer tier.Close(ctx)
	d, source, err := tier.TakeSource(ctx, "user:42", 1)
	if err != nil {
		log.Fatal(err) // ctx has ended, or the tier is closed
	}
	fmt.Println(d.Allowed, source)
}

// The first call has a connection dialled in the background. From then on, a lone caller makes the round
// trip itself.
func ExampleNewClient() {
	client, err := redislimit.NewClient(&redis.Options{Addr: "localhost:6379"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(1000).WithBurst(20), Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	tier, err := redislimit.NewTier(limiter, redislimit.TierConfig{Replicas: 8})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	defer tier.Close(context.Background())
	for tier.Stats().Led == 0 { // what comes before goes through the client's pool
		if _, err := tier.Peek(ctx, "user:42", 1); err != nil {
			log.Fatal(err) // ctx has ended: there is no server to dial
		}
	}
	if err := tier.Reset(ctx, "user:42"); err != nil {
		log.Fatal(err)
	}
	d, err := tier.Take(ctx, "user:42", 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Allowed, d.Remaining) // true 19
}
