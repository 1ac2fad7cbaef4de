package sluice_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-go/sluice"
)

// One limiter serves any number of keys: here 1000 units an hour for each user, at
// most 20 of them at once.
func Example() {
	lim, err := sluice.New(sluice.Config{Limit: sluice.PerHour(1000).WithBurst(20)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lim.Allow("user:42"))      // one unit
	fmt.Println(lim.AllowN("user:42", 20)) // 20 more at once are too many
	fmt.Println(lim.AllowN("user:7", 20))  // another user has a budget of its own

	d := lim.Take("user:42", 5) // and what to tell the client
	fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	// Output:
	// true
	// false
	// true
	// true 14 0s
}

// Take tells what a server wants to say to a client that it turns away.
func ExampleLimiter_Take() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(20).WithBurst(10), Clock: clock}))

	d := lim.Take("client", 8)
	fmt.Printf("%v, %d of %d left\n", d.Allowed, d.Remaining, d.Limit)

	d = lim.Take("client", 8)
	fmt.Printf("%v, retry after %v\n", d.Allowed, d.RetryAfter)

	d = lim.Take("client", 11)
	fmt.Printf("%v, never: %v\n", d.Allowed, d.RetryAfter == sluice.Never)
	// Output:
	// true, 2 of 10 left
	// false, retry after 18s
	// false, never: true
}

// Peek is for a dashboard: it says what Take would say, and charges nothing.
func ExampleLimiter_Peek() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	lim.Allow("client")
	fmt.Println(lim.Peek("client", 0).Remaining, lim.Peek("client", 0).Remaining, lim.Len())
	// Output: 4 4 1
}

// A Key is hashed once and can decide often. There are forms for keys that are
// not strings.
func ExampleKey() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)}))

	k := lim.Key("user:42")
	fmt.Println(k.Allow(), k.Allow(), k.Allow())

	v4 := lim.KeyAddr(netip.MustParseAddr("192.0.2.1"))
	mapped := lim.KeyAddr(netip.MustParseAddr("::ffff:192.0.2.1"))
	fmt.Println(v4 == mapped, v4.Take(1).Remaining)

	fmt.Println(lim.KeyUint64(42).Allow(), lim.KeyBytes([]byte("user:42")).Allow())
	// Output:
	// true true false
	// true 1
	// true false
}

// One reading of the clock can serve a batch of decisions.
func ExampleKey_AllowAt() {
	clock := sluice.SystemClock()
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1), Clock: clock}))
	now := clock.Now()
	for _, user := range []string{"ann", "bob", "ann"} {
		fmt.Println(user, lim.Key(user).AllowAt(now, 1))
	}
	// Output:
	// ann true
	// bob true
	// ann false
}

func ExampleParseLimit() {
	for _, s := range []string{"100/s", "20/m burst 5", "1000/24h", "ten/s"} {
		limit, err := sluice.ParseLimit(s)
		if err != nil {
			fmt.Println(err.Error()[:40])
			continue
		}
		fmt.Printf("%v: %d per %v\n", limit, limit.Rate, limit.Period)
	}
	// Output:
	// 100/s: 100 per 1s
	// 20/m burst 5: 20 per 1m0s
	// 1000/d: 1000 per 24h0m0s
	// sluice: limit "ten/s": rate "ten" is not
}

// A test of your own code moves the time itself.
func ExampleManualClock() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1), Clock: clock}))

	fmt.Println(lim.Allow("login:ann"))
	clock.Advance(time.Minute - 1)
	fmt.Println(lim.Allow("login:ann"))
	clock.Advance(1)
	fmt.Println(lim.Allow("login:ann"))
	// Output:
	// true
	// false
	// true
}

// A coarse clock makes decisions two to three times cheaper. One clock can serve
// many limiters, and none of them has to be closed.
func ExampleNewCoarseClock() {
	clock := sluice.NewCoarseClock(time.Millisecond)
	perUser := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1000), Clock: clock}))
	perHost := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5000), Clock: clock}))
	fmt.Println(perUser.Allow("ann") && perHost.Allow("192.0.2.1"))
	// Output: true
}

// WorstCase bounds what a backend has to bear from one key.
func ExampleLimiter_WorstCase() {
	for _, a := range []sluice.Algorithm{sluice.GCRA, sluice.FixedWindow, sluice.SlidingLog} {
		lim := sluice.Must(sluice.New(sluice.Config{Algorithm: a, Limit: sluice.PerSecond(10)}))
		fmt.Println(a, lim.WorstCase(time.Second/2))
	}
	// Output:
	// gcra 15
	// fixed-window 20
	// sliding-log 10
}

// Per address and per user together: a call passes if both limits let it, and is
// charged to both or to neither. With two Allow one after the other, what the
// second one denies would have been charged to the first.
func ExampleTakeAll() {
	perUser := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)}))
	perAddr := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)}))
	addr := perAddr.KeyAddr(netip.MustParseAddr("192.0.2.1"))

	for range 3 {
		d := sluice.TakeAll(
			sluice.Charge{Key: perUser.Key("ann"), Cost: 1},
			sluice.Charge{Key: addr, Cost: 1},
		)
		fmt.Println(d.Allowed, d.Denied)
	}
	fmt.Println(addr.Peek(0).Remaining)
	// Output:
	// true -1
	// true -1
	// false 0
	// 98
}

// Only failed logins count. An attempt is charged before the password is looked at,
// so that many at once cannot slip through, and refunded if the password was right.
func ExampleLimiter_Refund() {
	failures := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3)}))
	login := func(user, password string) string {
		if !failures.Allow(user) {
			return "too many failed attempts"
		}
		if password != "secret" {
			return "wrong password"
		}
		failures.Refund(user, 1)
		return "welcome"
	}
	for _, password := range []string{"secret", "secret", "secret", "guess", "guess", "secret", "guess", "secret"} {
		fmt.Println(login("ann", password))
	}
	// Output:
	// welcome
	// welcome
	// welcome
	// wrong password
	// wrong password
	// welcome
	// wrong password
	// too many failed attempts
}
