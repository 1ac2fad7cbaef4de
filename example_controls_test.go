package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

// A restart without amnesia: the state is written on the way out, and taken over on the
// way in. The file is written beside the old one, synced and renamed, so that whatever
// happens there is a whole one. Time that passes in between counts.
func ExampleLimiter_Snapshot() {
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "limiter.snapshot")
	save := func(lim *sluice.Limiter) error {
		f, err := os.CreateTemp(dir, "limiter-*")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name()) // fails once it has been renamed
		if err := errors.Join(lim.Snapshot(f), f.Sync(), f.Close()); err != nil {
			return err
		}
		return os.Rename(f.Name(), path)
	}

	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	config := sluice.Config{Limit: sluice.PerHour(100), Hash: sluice.HashStable, Clock: clock}
	before := sluice.Must(sluice.New(config))
	fmt.Println(before.AllowN("user:42", 90), save(before))

	clock.Advance(6 * time.Minute) // the new process starts
	after := sluice.Must(sluice.New(config))
	f, err := os.Open(path)
	if err == nil {
		err = errors.Join(after.Restore(f), f.Close())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // there is none at the first start
		fmt.Println(err)
	}
	fmt.Println(after.Peek("user:42", 0).Remaining, "left")
	// Output:
	// true <nil>
	// 20 left
}

// A queue that shapes what goes out: however calls come, they leave evenly, here two a
// second, and no more than three are on their way.
func ExampleLimiter_Reserve() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	queue := sluice.Must(sluice.New(sluice.Config{
		Algorithm: sluice.LeakyBucket,
		Limit:     sluice.PerSecond(2).WithBurst(3),
		Clock:     clock,
	}))
	for i := range 4 {
		r, err := queue.Reserve("smtp.example.com", 1, time.Minute)
		if errors.Is(err, sluice.ErrQueueFull) {
			fmt.Println("mail", i, "has to come back later")
			continue
		}
		fmt.Println("mail", i, "leaves after", r.Delay())
	}
	clock.Advance(time.Second)
	r, _ := queue.Reserve("smtp.example.com", 1, time.Minute)
	fmt.Println("a second later there is room again, after", r.Delay())
	r.Cancel() // and nothing was sent
	// Output:
	// mail 0 leaves after 0s
	// mail 1 leaves after 500ms
	// mail 2 leaves after 1s
	// mail 3 has to come back later
	// a second later there is room again, after 500ms
}

// Wait is Reserve for those who would only sleep: it returns when it is their turn.
func ExampleLimiter_Wait() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	queue := sluice.Must(sluice.New(sluice.Config{
		Algorithm: sluice.LeakyBucket,
		Limit:     sluice.PerSecond(2).WithBurst(3),
		Clock:     clock,
	}))
	ctx := context.Background()
	fmt.Println("first:", queue.Wait(ctx, "smtp.example.com", 1)) // at once

	var sent sync.WaitGroup
	sent.Go(func() { fmt.Println("second:", queue.Wait(ctx, "smtp.example.com", 1)) })
	for queue.Peek("smtp.example.com", 0).Remaining > 1 {
		time.Sleep(time.Millisecond) // until the second one has its place
	}
	clock.Advance(500 * time.Millisecond)
	sent.Wait()

	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	fmt.Println("too much:", queue.Wait(ctx, "smtp.example.com", 4))
	// Output:
	// first: <nil>
	// second: <nil>
	// too much: sluice: the cost exceeds the burst
}

// Some customers have a limit of their own. What they have spent stays spent when it
// changes, and they are never evicted from it.
func ExampleLimiter_SetKeyLimit() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)}))
	lim.AllowN("customer:7", 80)

	if err := lim.SetKeyLimit("customer:7", sluice.PerHour(1000)); err != nil { // signs up
		fmt.Println(err)
	}
	d := lim.Take("customer:7", 0)
	fmt.Println(d.Remaining, "of", d.Limit)

	lim.ClearKeyLimit("customer:7") // and leaves again
	d = lim.Take("customer:7", 0)
	fmt.Println(d.Remaining, "of", d.Limit)

	err := lim.SetKeyLimit("customer:8", sluice.DenyAll) // has not paid
	fmt.Println(lim.Allow("customer:8"), err)
	// Output:
	// 920 of 1000
	// 20 of 100
	// false <nil>
}

// Users are on plans, and a plan's limit is changed by one call. A partner's limit comes in
// its token, and nobody keeps it.
func ExampleLimiter_SetPlan() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(60)}))
	err := errors.Join(lim.SetPlan("pro", sluice.PerMinute(300)), lim.SetKeyPlan("ann", "pro"))
	fmt.Println(lim.Take("ann", 10).Remaining, err)

	err = lim.SetPlan("pro", sluice.PerMinute(500))
	fmt.Println(lim.Peek("ann", 0).Remaining, err)

	partner, err := lim.Key("partner").WithLimit(sluice.PerMinute(1000))
	fmt.Println(partner.Take(1).Remaining, err)
	// Output:
	// 290 <nil>
	// 490 <nil>
	// 999 <nil>
}

// Ann has three attempts to log in, and the fourth locks her out for a quarter of an hour:
// every attempt is charged, and one that succeeds starts her over. The limit and the block
// are of the same time, since a block lasts at least until the key would be fresh by itself.
// Operators can block and unblock by hand.
func ExampleLimiter_Block() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	logins := sluice.Must(sluice.New(sluice.Config{
		Limit:    sluice.Per(3, 15*time.Minute),
		BlockFor: 15 * time.Minute,
		Clock:    clock,
	}))
	login := func(user, password string) string {
		if d := logins.Take(user, 1); !d.Allowed {
			return fmt.Sprint("locked out for ", d.RetryAfter)
		}
		if password != "correct" {
			return "wrong password"
		}
		logins.Reset(user)
		return "welcome"
	}
	for _, password := range []string{"a", "b", "correct", "c", "d", "e", "correct"} {
		fmt.Println(login("ann", password))
	}
	clock.Advance(5 * time.Minute)
	fmt.Println(login("ann", "correct"))
	logins.Unblock("ann") // she has called
	fmt.Println(login("ann", "correct"))
	fmt.Println(logins.Block("mallory", 24*time.Hour), logins.Peek("mallory", 1).RetryAfter)
	// Output:
	// wrong password
	// wrong password
	// welcome
	// wrong password
	// wrong password
	// wrong password
	// locked out for 15m0s
	// locked out for 10m0s
	// welcome
	// true 24h0m0s
}

func ExampleLimiter_Charge() {
	l := sluice.Must(sluice.New(sluice.Config{
		Limit: sluice.PerMinute(600).WithBurst(1000),
		Clock: sluice.NewManualClock(time.Unix(0, 0)), // stands still
	}))
	fmt.Println(l.Allow("ann")) // one token: is there anything left at all?
	d := l.Charge("ann", 1199)  // the answer took 1,199 more
	fmt.Println(d.Allowed, d.RetryAfter)
	// Output:
	// true
	// false 20.1s
}

func ExampleLimiter_TakeUpTo() {
	l := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)}))
	for range 3 {
		n, _ := l.TakeUpTo("batch", 60)
		fmt.Println(n)
	}
	// Output:
	// 60
	// 40
	// 0
}
