package sluice_test

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// A new limit is tried out on live traffic before it is enforced: nobody is denied,
// and the statistics say who would have been.
func ExampleConfig_shadow() {
	lim := sluice.Must(sluice.New(sluice.Config{
		Limit:  sluice.PerMinute(3),
		Shadow: true,
		Stats:  true,
	}))
	for i := range 5 {
		d := lim.Take("user:42", 1)
		if d.WouldDeny {
			fmt.Println("call", i+1, "would wait", d.RetryAfter.Round(time.Minute/3))
		}
	}
	s := lim.Stats()
	fmt.Println(s.Admitted, "admitted,", s.WouldDeny, "of them only because of Shadow")
	// Output:
	// call 4 would wait 20s
	// call 5 would wait 20s
	// 5 admitted, 2 of them only because of Shadow
}

// Ten a second are sold, and twelve served: who uses the last two gets a warning
// before anything is denied.
func ExampleConfig_soft() {
	lim := sluice.Must(sluice.New(sluice.Config{
		Limit: sluice.PerSecond(10),
		Soft:  2,
		Clock: sluice.NewManualClock(time.Now()), // stands still
	}))
	served, warned := 0, 0
	for range 15 {
		d := lim.Take("customer:7", 1)
		if d.Allowed {
			served++
		}
		if d.OverSoft {
			warned++
		}
	}
	fmt.Println(served, "served,", warned, "with a warning, and", 15-served, "denied")
	// Output: 12 served, 2 with a warning, and 3 denied
}
