package redistier_test

import (
	"log"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redistier"
)

func ExampleLease() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	limiter, err := redistier.New(client, redistier.Config{Limit: sluice.PerSecond(5000), Prefix: "rl:api"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = redistier.NewTier(limiter, redistier.TierConfig{
		Replicas: 8,
		Lease:    redistier.Lease{Max: 1000, Life: 100 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}
}
