package redislimit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	limiter, err := redislimit.New(client, redislimit.Config{
		Limit:  sluice.PerHour(1000).WithBurst(20),
		Prefix: "rl:api",
	})
	if err != nil {
		log.Fatal(err)
	}
	d, err := limiter.Take(context.Background(), "user:42", 1)
	switch {
	case err != nil: // nothing is known: decide what that means for you
		log.Print(err)
	case !d.Allowed:
		fmt.Println("come back in", d.RetryAfter)
	default:
		fmt.Println(d.Remaining, "left")
	}
}
