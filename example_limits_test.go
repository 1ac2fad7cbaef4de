package sluice_test

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// Another limit while the server runs. A key keeps what it has spent: it is given no new
// burst, and owes what is too much under a smaller limit.
func ExampleLimiter_SetLimit() {
	lim := sluice.Must(sluice.New(sluice.Config{
		Limit: sluice.PerHour(100),
		Clock: sluice.NewManualClock(time.Now()), // stands still
	}))
	lim.AllowN("ann", 80)

	err := lim.SetLimit(sluice.PerHour(200))
	fmt.Println(lim.Key("ann").Peek(0).Remaining, "left", err)

	err = lim.SetLimit(sluice.PerHour(60))
	fmt.Println(lim.Key("ann").Peek(1).RetryAfter, "to wait", err)
	// Output:
	// 120 left <nil>
	// 21m0s to wait <nil>
}

// Some customers have a limit of their own. A change of it gives nothing back of what they
// have spent, and they are never evicted from it.
func ExampleKey_SetLimit() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)}))
	lim.AllowN("customer:7", 80)

	if err := lim.Key("customer:7").SetLimit(sluice.PerHour(1000)); err != nil { // signs up
		fmt.Println(err)
	}
	d := lim.Take("customer:7", 0)
	fmt.Println(d.Remaining, "of", d.Limit)

	lim.Key("customer:7").ClearLimit() // and leaves again
	d = lim.Take("customer:7", 0)
	fmt.Println(d.Remaining, "of", d.Limit)

	err := lim.Key("customer:8").SetLimit(sluice.DenyAll) // has not paid
	fmt.Println(lim.Allow("customer:8"), err)
	// Output:
	// 920 of 1000
	// 20 of 100
	// false <nil>
}

// Users are on plans, which are limits that the program keeps. A partner's limit comes in its
// token, and nobody keeps it.
func ExampleKey_WithLimit() {
	clock := sluice.NewManualClock(time.Unix(0, 0)) // for the exact output below
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(60), Clock: clock}))
	plans := map[string]sluice.Limit{"pro": sluice.PerMinute(300)}
	ann, err := lim.Key("ann").WithLimit(plans["pro"])
	fmt.Println(ann.Take(10).Remaining, err)

	plans["pro"] = sluice.PerMinute(500) // from the next request on
	ann, err = lim.Key("ann").WithLimit(plans["pro"])
	fmt.Println(ann.Take(0).Remaining, err)

	partner, err := lim.Key("partner").WithLimit(sluice.PerMinute(1000))
	fmt.Println(partner.Take(1).Remaining, err)
	// Output:
	// 290 <nil>
	// 490 <nil>
	// 999 <nil>
}

// A plan of 1,000 calls a month renews on the 15th, at midnight in Seoul.
func ExamplePerCalendar() {
	renews := sluice.Calendar{Unit: sluice.CalendarMonth, Zone: "Asia/Seoul", Day: 15}
	clock := sluice.NewManualClock(time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC))
	plans := sluice.Must(sluice.New(sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(1000, renews), Clock: clock}))
	d := plans.Take("ann", 400)
	fmt.Println(plans.Config().Limit, d.Remaining, d.ResetAfter)
	_, ends, err := renews.Window(time.Unix(0, clock.Now()).UTC())
	fmt.Println(ends, err)
	// Output:
	// 1000 per month in Asia/Seoul starting 15 600 387h0m0s
	// 2026-12-14 15:00:00 +0000 UTC <nil>
}
