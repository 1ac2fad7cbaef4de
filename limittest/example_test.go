package limittest_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/limittest"
)

// A clock is asked whether a goroutine's sleep moves it, before a test relies on that. In a bubble of
// testing/synctest the check takes no real time.
func ExampleCheckClock() {
	fmt.Println(limittest.CheckClock(sluice.NewFastClock()))
	fmt.Println(limittest.CheckClock(sluice.NewManualClock(time.Now())))
	// Output:
	// <nil>
	// limittest: CheckClock: a ManualClock stands still while a goroutine sleeps; call its Advance instead of time.Sleep, or take a SystemClock made in the bubble
}

// A limiter that counts by the minute is said to admit 10 a minute. Asked around the turn of one, it admits 20 within a second.
func ExampleChecker() {
	counts := map[int64]int{}
	admit := func(now int64) bool {
		minute := now / int64(time.Minute)
		counts[minute]++
		return counts[minute] <= 10
	}

	limit := sluice.PerMinute(10)
	checker := limittest.NewChecker(limittest.Bound(func(d time.Duration) int {
		return limit.Rate * (1 + int(d/limit.Period))
	}, time.Minute))
	traffic := limittest.Traffic{Start: time.Unix(45, 0), Every: time.Second, N: 60}
	for a := range traffic.Bursty(15) {
		checker.Record(a.At, a.Key, a.Cost, admit(a.At))
	}
	fmt.Println(checker.Err())
	// Output: limittest: key "key-0" was admitted 20 units within 15s, from 45000000000 to 60000000000 ns; the promise is at most 10
}

// A limiter is compared with the definition of its algorithm.
func ExampleModel() {
	config := sluice.Config{Algorithm: sluice.SlidingWindow, Limit: sluice.PerMinute(10)}
	model, err := limittest.NewModel(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	clock := sluice.NewManualClock(time.Unix(0, 0))
	config.Clock = clock
	lim := sluice.Must(sluice.New(config))

	denied := 0
	traffic := limittest.Traffic{Seed: 1, N: 1000, Every: 3 * time.Second, Keys: 2, MaxCost: 3}
	for a := range traffic.Poisson() {
		clock.Set(time.Unix(0, a.At))
		got, want := lim.Take(a.Key, a.Cost), model.Take(a.At, a.Key, a.Cost)
		if got != want {
			fmt.Printf("%+v: %+v, want %+v\n", a, got, want)
			return
		}
		if !want.Allowed {
			denied++
		}
	}
	fmt.Println("the same 1000 times,", denied > 100)
	// Output: the same 1000 times, true
}

// A client is tested beside a server that limits it to two requests a minute, and is down for the first. This one
// does not wait as long as it is told, which the server has noticed.
func ExampleAPI() {
	clock := sluice.NewManualClock(time.Unix(0, 0))
	api := limittest.NewAPI(limittest.APIConfig{
		Limiter:    sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(2), Clock: clock})),
		RetryAfter: limittest.RetryAfterSeconds,
		Generation: limittest.Draft11,
	})
	api.Next(1, limittest.Fault{Status: http.StatusServiceUnavailable})

	client := &http.Client{Transport: api}
	for range 5 {
		resp, err := client.Get("http://api.test/")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%d [%s] [%s]\n", resp.StatusCode, resp.Header.Get("RateLimit"), resp.Header.Get("Retry-After"))
		clock.Advance(time.Second)
	}
	for i, e := range api.Exchanges() {
		if e.Early {
			fmt.Println("request", i, "came too early")
		}
	}
	// Output:
	// 503 [] []
	// 200 ["default";r=1;t=30] []
	// 200 ["default";r=0;t=29] []
	// 429 ["default";r=0;t=28] [28]
	// 429 ["default";r=0;t=27] [27]
	// request 4 came too early
}
