package redislimit_test

import (
	"log"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

func ExampleLease() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerSecond(5000), Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = redislimit.NewTier(limiter, redislimit.TierConfig{
		Replicas: 8,
		Lease:    redislimit.Lease{Max: 1000, Life: 100 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}
}
