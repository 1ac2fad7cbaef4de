package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
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
func ExampleKey_Peek() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(5)}))
	lim.Allow("client")
	fmt.Println(lim.Key("client").Peek(0).Remaining, lim.Key("client").Peek(0).Remaining, lim.Len())
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

// A limit for each client by its address, as for gRPC: an IPv6 host can use any address of its
// /64, and has one budget in all of them.
func ExampleLimiter_KeyAddr() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(1)}))
	allow := func(peer netip.AddrPort) bool {
		addr := peer.Addr().Unmap()
		if addr.Is6() {
			addr = netip.PrefixFrom(addr, 64).Masked().Addr()
		}
		return lim.KeyAddr(addr).Allow()
	}
	for _, peer := range []string{"192.0.2.1:4711", "[::ffff:192.0.2.1]:4712", "[2001:db8::1]:4711", "[2001:db8::2]:4711"} {
		fmt.Println(peer, allow(netip.MustParseAddrPort(peer)))
	}
	// Output:
	// 192.0.2.1:4711 true
	// [::ffff:192.0.2.1]:4712 false
	// [2001:db8::1]:4711 true
	// [2001:db8::2]:4711 false
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

// A batch of calls, each of which is decided by itself.
func ExampleAllowEach() {
	lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)}))
	users := []string{"ann", "bob", "ann", "ann", "bob"}
	charges := make([]sluice.Charge, len(users))
	for i, user := range users {
		charges[i] = sluice.Charge{Key: lim.Key(user), Cost: 1}
	}
	for i, admitted := range sluice.AllowEach(nil, charges...) {
		fmt.Println(users[i], admitted)
	}
	// Output:
	// ann true
	// bob true
	// ann true
	// ann false
	// bob true
}

// Only failed logins count. An attempt is charged before the password is looked at,
// so that many at once cannot slip through, and refunded if the password was right.
func ExampleKey_Refund() {
	failures := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(3)}))
	login := func(user, password string) string {
		if !failures.Allow(user) {
			return "too many failed attempts"
		}
		if password != "secret" {
			return "wrong password"
		}
		failures.Key(user).Refund(1)
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

// A client that goes on hammering is admitted again only after it has kept to the limit for
// a period.
func ExampleConfig_countDenied() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	lim := sluice.Must(sluice.New(sluice.Config{
		Algorithm:   sluice.SlidingLog,
		Limit:       sluice.PerMinute(3),
		CountDenied: true,
		Clock:       clock,
	}))
	hammer := func(calls int) (admitted int) {
		for range calls {
			if lim.Allow("client") {
				admitted++
			}
			clock.Advance(10 * time.Second)
		}
		return admitted
	}
	fmt.Println(hammer(60), "calls of ten minutes")
	clock.Advance(time.Minute)
	fmt.Println(hammer(60), "more after a pause")
	// Output:
	// 3 calls of ten minutes
	// 3 more after a pause
}

// Who is denied most. The counts are estimates, by a sample of the denials.
func ExampleLimiter_TopDenied() {
	lim := sluice.Must(sluice.New(sluice.Config{
		Limit:     sluice.PerHour(100),
		Clock:     sluice.NewManualClock(time.Now()), // stands still
		TopDenied: 10,
	}))
	for user, calls := range map[string]int{"mallory": 50_000, "ann": 100, "eve": 5_000} {
		for range calls {
			lim.Allow(user)
		}
	}
	for _, k := range lim.TopDenied() {
		fmt.Println(k.Name, k.Denied > 1_000)
	}
	// Output:
	// mallory true
	// eve true
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
	fmt.Println(after.Key("user:42").Peek(0).Remaining, "left")
	// Output:
	// true <nil>
	// 20 left
}

// A queue that shapes what goes out: however calls come, they leave evenly, here two a
// second, and no more than three are on their way.
func ExampleKey_Reserve() {
	clock := sluice.NewManualClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	queue := sluice.Must(sluice.New(sluice.Config{
		Algorithm: sluice.LeakyBucket,
		Limit:     sluice.PerSecond(2).WithBurst(3),
		Clock:     clock,
	}))
	for i := range 4 {
		r, err := queue.Key("smtp.example.com").Reserve(1, time.Minute)
		if errors.Is(err, sluice.ErrQueueFull) {
			fmt.Println("mail", i, "has to come back later")
			continue
		}
		fmt.Println("mail", i, "leaves after", r.Delay())
	}
	clock.Advance(time.Second)
	r, _ := queue.Key("smtp.example.com").Reserve(1, time.Minute)
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
	for queue.Key("smtp.example.com").Peek(0).Remaining > 1 {
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

// Ann has three attempts to log in, and the fourth locks her out for a quarter of an hour:
// every attempt is charged, and one that succeeds starts her over. The limit and the block
// are of the same time, since a block lasts at least until the key would be fresh by itself.
// Operators can block and unblock by hand.
func ExampleKey_Block() {
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
		logins.Key(user).Reset()
		return "welcome"
	}
	for _, password := range []string{"a", "b", "correct", "c", "d", "e", "correct"} {
		fmt.Println(login("ann", password))
	}
	clock.Advance(5 * time.Minute)
	fmt.Println(login("ann", "correct"))
	logins.Key("ann").Unblock() // she has called
	fmt.Println(login("ann", "correct"))
	fmt.Println(logins.Key("mallory").Block(24*time.Hour), logins.Key("mallory").Peek(1).RetryAfter)
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

func ExampleKey_Debit() {
	l := sluice.Must(sluice.New(sluice.Config{
		Limit: sluice.PerMinute(600).WithBurst(1000),
		Clock: sluice.NewManualClock(time.Unix(0, 0)), // stands still
	}))
	fmt.Println(l.Allow("ann"))   // one token: is there anything left at all?
	d := l.Key("ann").Debit(1199) // the answer took 1,199 more
	fmt.Println(d.Allowed, d.RetryAfter)
	fmt.Println("in debt for", d.ResetAfter-l.Config().RefillTime(1000))
	// Output:
	// true
	// false 20.1s
	// in debt for 20s
}

func ExampleKey_TakeUpTo() {
	l := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)}))
	for range 3 {
		n, _ := l.Key("batch").TakeUpTo(60)
		fmt.Println(n)
	}
	// Output:
	// 60
	// 40
	// 0
}

// An API allows so many requests and so many tokens a minute. A request waits until there is
// room for both, and gives back the tokens that it turns out not to use.
func ExampleWaitAll() {
	clock := sluice.NewManualClock(time.Unix(0, 0)) // stands still
	requests := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10), Clock: clock}))
	tokens := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(6000).WithBurst(2000), Clock: clock}))
	model := "gpt"
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, estimate := range []int{1500, 1500, 1500} {
		reservations, err := sluice.WaitAll(ctx, sluice.Charge{requests.Key(model), 1}, sluice.Charge{tokens.Key(model), estimate})
		if err != nil {
			fmt.Println(err) // the third call would have to wait for 5 s
			break
		}
		reservations[1].Settle(500) // as the response says
	}
	fmt.Println(requests.Key(model).Peek(0).Remaining, "requests left")
	fmt.Println(tokens.Key(model).Peek(0).Remaining, "tokens left")
	// Output:
	// sluice: the wait would exceed the deadline
	// 8 requests left
	// 1000 tokens left
}

// A client may have two streams open at once. A stream that ends without a Release, in a goroutine that
// has been lost, gives its unit back within two minutes.
func ExampleLimiter_Acquire() {
	streams := sluice.Must(sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Minute)}))
	first, err := streams.Acquire("user:42", 1)
	fmt.Println(err)
	second, _ := streams.Acquire("user:42", 1)
	_, err = streams.Acquire("user:42", 1)
	fmt.Println(err)
	fmt.Println(first.Release(), second.Release(), second.Release())
	// Output:
	// <nil>
	// sluice: denied
	// <nil> <nil> sluice: the units are not held: they have been released, or have lapsed
}

// A call of a language model needs a request, an estimate of tokens, and a stream, or nothing. The stream asks for
// more tokens as it grows. In the end the tokens that it has used are charged.
func ExampleReservation_Extend() {
	requests := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(60)}))
	tokens := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1000)}))
	streams := sluice.Must(sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(5, time.Minute)}))
	reservations, err := sluice.WaitAll(context.Background(),
		sluice.Charge{requests.Key("ann"), 1}, sluice.Charge{tokens.Key("ann"), 300}, sluice.Charge{streams.Key("ann"), 1})
	if err != nil {
		return
	}
	defer reservations[2].Cancel() // the stream has ended
	used := 0
	for held := 300; ; held += 100 {
		used = held // the stream has sent so many tokens
		if !reservations[1].Extend(100) {
			break // cut, where the limit is reached
		}
	}
	reservations[1].Settle(used)
	fmt.Println(used, tokens.Key("ann").Peek(0).Remaining)
	// Output: 1000 0
}
