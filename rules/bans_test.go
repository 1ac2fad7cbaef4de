package rules

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// throttleAndBan throttles clients, and bans those who are denied three times in an hour.
const throttleAndBan = `
domain: d
sluice: {atomic: %v}
descriptors:
- {key: client, rate_limit: {unit: minute, requests_per_unit: 2, name: throttle%s}}
- {key: ban, rate_limit: {unit: hour, requests_per_unit: 3, counts_denials_of: throttle%s}}
`

func banText(atomic bool, throttle, ban string) string {
	return fmt.Sprintf(throttleAndBan, atomic, throttle, ban)
}

var (
	banAnn = []Descriptor{describe("client=ann"), describe("ban=ann")}
	banBob = []Descriptor{describe("ban=bob"), describe("client=bob")}
)

// banWorlds has the test run by memory and by a Store, and under each mode.
func banWorlds(t *testing.T, run func(t *testing.T, atomic bool, world func(text string) *world)) {
	for _, shared := range []bool{false, true} {
		for _, mode := range []string{"each", "atomic", "stop"} {
			t.Run(fmt.Sprintf("shared %v, %s", shared, mode), func(t *testing.T) {
				run(t, mode == "atomic", func(text string) *world {
					clock := sluice.NewManualClock(start)
					c := Config{Clock: clock, StopWhenOver: mode == "stop"}
					if shared {
						c.Store = newHoldModel(clock)
					}
					e, err := New(mustLoad(t, text), c)
					require.NoError(t, err)
					return &world{tb: t, clock: clock, Engine: e}
				})
			})
		}
	}
}

// TestBans: the third denial says how long the client is banned. Until then nobody else is, and calls that pass do not count.
func TestBans(t *testing.T) {
	banWorlds(t, func(t *testing.T, atomic bool, world func(string) *world) {
		for _, algorithm := range []string{"", ", algorithm: gcra", ", algorithm: token-bucket", ", algorithm: sliding-window", ", algorithm: sliding-log", ", algorithm: leaky-bucket"} {
			for _, blocks := range []bool{false, true} {
				if atomic && algorithm == "" && !blocks {
					continue // is refused
				}
				ban, least := algorithm, time.Minute
				if blocks {
					ban, least = ban+", block_for: 24h", 24*time.Hour
				}
				w := world(banText(atomic, algorithm, ban))
				for range 2 {
					require.Equal(t, OK, w.ask(banAnn...).Code)
				}
				require.Equal(t, 3, w.left("ban=ann"), "calls that pass do not count")
				for n := range 2 {
					resp := w.ask(banAnn...)
					require.Equal(t, OverLimit, resp.Code)
					require.Equal(t, OK, resp.Statuses[1].Code)
					require.EqualValues(t, 2-n, resp.Statuses[1].Remaining)
				}
				resp := w.ask(banAnn...)
				require.Equal(t, OverLimit, resp.Statuses[1].Code, "%s: the third says so", ban)
				require.GreaterOrEqual(t, resp.Statuses[1].RetryAfter, least)
				require.Equal(t, 1, resp.Tightest)
				require.Equal(t, "d.ban", resp.DeniedBy())
				until := w.clock.Now() + int64(resp.Statuses[1].RetryAfter)

				w.clock.Advance(2 * time.Minute)
				resp = w.ask(banAnn...)
				require.Equal(t, OverLimit, resp.Code)
				require.Equal(t, OK, resp.Statuses[0].Code)
				require.EqualValues(t, until, w.clock.Now()+int64(resp.Statuses[1].RetryAfter), "it is not longer for that")
				for range 2 {
					require.Equal(t, OK, w.ask(banBob...).Code)
				}
				s := w.series("d.ban")
				require.Equal(t, []uint64{4, 3, 1}, []uint64{s.Total, s.Within, s.Over}, "denials that it has counted, and its own")
				w.clock.Advance(time.Duration(until-w.clock.Now()) - 1)
				require.Equal(t, OverLimit, w.ask(banAnn...).Code)
				w.clock.Advance(1)
				require.Equal(t, OK, w.ask(describe("ban=ann")).Code)
			}
		}
	})
}

// TestBans_Model: random calls are banned when a count of their denials says so.
func TestBans_Model(t *testing.T) {
	banWorlds(t, func(t *testing.T, atomic bool, world func(string) *world) {
		r := seeded.Rand(t)
		bans := 0
		for _, block := range []time.Duration{0, 2 * time.Hour} {
			if atomic && block == 0 {
				continue // is refused
			}
			w := world(banText(atomic, "", fmt.Sprintf(", block_for: %v", block)))
			type key struct {
				hour  int64
				count uint64
				until int64
			}
			keys := map[string]*key{"ann": {}, "bob": {}}
			for range 5000 {
				w.clock.Advance(time.Duration(r.Int64N(int64(40 * time.Second))))
				client, hits := pick(r, "ann", "bob"), uint64(r.IntN(3))
				k, now := keys[client], w.clock.Now()
				if hour := now / int64(time.Hour); hour != k.hour {
					k.hour, k.count = hour, 0
				}
				over := now < k.until || k.count >= 3
				resp := w.ask(describe("client="+client), withHits("ban="+client, hits))
				if throttled := resp.Statuses[0].Over; throttled && !over && hits > 0 {
					k.count = min(3, k.count+hits)
					if over = k.count == 3; over {
						k.until = now + int64(block)
						bans++
					}
				}
				require.Equal(t, over, resp.Statuses[1].Over, "%s at %d", client, now)
				require.Equal(t, resp.Statuses[0].Over || over, resp.Code == OverLimit)
			}
		}
		require.Greater(t, bans, 20)
	})
}

// TestBans_Shadow: a ban in force counts denied calls. A ban in shadow mode also counts calls that a throttle in shadow mode would
// deny, and denies nobody.
func TestBans_Shadow(t *testing.T) {
	text := func(throttle, ban bool) string {
		return fmt.Sprintf("domain: d\ndescriptors:\n- {key: client, shadow_mode: %v, rate_limit: {unit: hour, requests_per_unit: 0, name: throttle}}\n"+
			"- {key: ban, shadow_mode: %v, rate_limit: {unit: hour, requests_per_unit: 3, counts_denials_of: throttle}}\n", throttle, ban)
	}
	for _, c := range []struct {
		throttle, ban bool
		wantLeft      int
		want          Code
	}{{false, false, 0, OverLimit}, {true, false, 3, OK}, {false, true, 0, OverLimit}, {true, true, 0, OK}} {
		w := newWorld(t, Config{}, text(c.throttle, c.ban))
		for range 5 {
			require.Equal(t, c.want, w.ask(banAnn...).Code)
		}
		require.Equal(t, c.wantLeft, w.left("ban=ann"), "%+v", c)
		if c.ban {
			require.EqualValues(t, 2, w.series("d.ban").Shadow)
		}
	}
	w := newWorld(t, Config{Shadow: true}, text(false, false))
	for range 5 {
		resp := w.ask(banAnn...)
		require.Equal(t, OK, resp.Code)
		require.True(t, resp.WouldDeny)
	}
	require.EqualValues(t, 5, w.Engine.Stats().GlobalShadow)
	require.Equal(t, 0, w.left("ban=ann"))
}

// TestBans_NotCounted: a refund, a call without the throttle, a throttle that another rule replaces, and counts that are no numbers are no
// denials; Reset lifts a ban, and a reload keeps it.
func TestBans_NotCounted(t *testing.T) {
	text := "domain: d\ndescriptors:\n" +
		"- {key: client, rate_limit: {unit: hour, requests_per_unit: 0, name: throttle, weights: {input: 1}}}\n" +
		"- {key: other, rate_limit: {unit: hour, requests_per_unit: 0}}\n" +
		"- {key: instead, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: throttle}, {name: gone}]}}\n" +
		"- {key: pardon, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: gone}]}}\n" +
		"- {key: ban, rate_limit: {unit: hour, requests_per_unit: 3, counts_denials_of: throttle, name: gone}}\n"
	w := newWorld(t, Config{}, text)
	back := describe("ban=ann")
	back.Refund = true
	require.Equal(t, OverLimit, w.ask(describe("client=ann"), back).Code)
	require.Equal(t, OverLimit, w.ask(describe("other=ann"), banAnn[1]).Code)
	require.Equal(t, OverLimit, w.ask(describe("client=ann,input=x"), banAnn[1]).Code)
	require.Equal(t, OK, w.ask(describe("client=ann"), describe("instead=ann"), banAnn[1]).Code)
	require.Equal(t, OverLimit, w.ask(describe("client=ann"), describe("pardon=ann"), banAnn[1]).Code)
	require.Equal(t, 3, w.left("ban=ann"))
	w.ask(banAnn...)
	require.Equal(t, OK, w.ask(back).Code)
	require.Equal(t, 2, w.left("ban=ann"), "a denial cannot be given back")
	require.Zero(t, w.series("d.ban").Refunded)
	for range 2 {
		w.ask(banAnn...)
	}
	require.NoError(t, w.Swap(mustLoad(t, text+"- {key: more, rate_limit: {unit: hour, requests_per_unit: 1}}\n")))
	require.Equal(t, OverLimit, w.ask(banAnn[1]).Code)
	require.NoError(t, w.Reset(&Request{Domain: "d", Descriptors: banAnn[1:]}))
	require.Equal(t, OK, w.ask(banAnn[1]).Code)
}

// TestBans_Holds: a hold that the throttle denies counts, and who is banned holds nothing, whatever the other limits have room for.
func TestBans_Holds(t *testing.T) {
	banWorlds(t, func(t *testing.T, atomic bool, world func(string) *world) {
		w := world(banText(atomic, "", ", block_for: 24h") + "- {key: at_once, rate_limit: {at_once: 5, lease: 1h}}\n")
		hold := func(id string) (*Hold, *Response) {
			h, resp := &Hold{ID: id, Request: Request{Domain: "d", Descriptors: append(banAnn[:2:2], describe("at_once=ann"))}}, new(Response)
			require.NoError(t, w.Hold(h, resp))
			return h, resp
		}
		first, resp := hold("1")
		require.Equal(t, OK, resp.Code)
		_, resp = hold("1")
		require.Equal(t, OK, resp.Code, "again")
		second, resp := hold("2")
		require.Equal(t, OK, resp.Code)
		for n := range 3 {
			_, resp = hold(fmt.Sprint("denied", n))
			require.Equal(t, OverLimit, resp.Code)
		}
		require.Equal(t, 24*time.Hour, resp.Statuses[1].RetryAfter)
		require.Equal(t, 3, w.left("at_once=ann"), "nothing stays held")
		w.clock.Advance(2 * time.Minute)
		_, resp = hold("banned")
		require.Equal(t, OverLimit, resp.Code)
		require.Equal(t, []Code{OK, OverLimit, OK}, []Code{resp.Statuses[0].Code, resp.Statuses[1].Code, resp.Statuses[2].Code})
		require.EqualValues(t, []uint32{2, 0, 3}, []uint32{resp.Statuses[0].Remaining, resp.Statuses[1].Remaining, resp.Statuses[2].Remaining})
		require.Equal(t, "d.ban", resp.DeniedBy())
		_, resp = hold("1")
		require.Equal(t, OverLimit, resp.Code, "a repeated one, too; the hold stays open")
		for _, h := range []*Hold{first, second} {
			one := uint64(1)
			h.Request.Descriptors[0].Hits, h.Request.Descriptors[2].Hits = &one, &one
			require.NoError(t, w.Extend(h, resp))
			require.Equal(t, OverLimit, resp.Code)
			require.Equal(t, "d.ban", resp.DeniedBy())
			h.Request.Descriptors[0].Hits, h.Request.Descriptors[2].Hits = new(uint64), new(uint64)
			require.NoError(t, w.Extend(h, resp))
			require.Equal(t, OK, resp.Code, "it only goes on")
			h.Request.Descriptors[0].Hits, h.Request.Descriptors[2].Hits = &one, &one
			require.NoError(t, w.Settle(h))
		}
		if w.memory != nil { // the model of a Store gives nothing back
			require.Equal(t, 5, w.left("at_once=ann"))
		}
		require.EqualValues(t, 4+1, w.Engine.Holds().Denied)
		require.EqualValues(t, 2, w.Engine.Holds().Cut)
		require.Zero(t, w.series("d.ban").Estimated)
		w.clock.Advance(24 * time.Hour)
		_, resp = hold("later")
		require.Equal(t, OK, resp.Code)
	})
}

// TestBans_EndWithTheWindow: calls of a client who is banned do not make a ban longer, also where the block is over before the window is.
func TestBans_EndWithTheWindow(t *testing.T) {
	banWorlds(t, func(t *testing.T, atomic bool, world func(string) *world) {
		for _, algorithm := range []string{"", ", algorithm: gcra", ", algorithm: sliding-log"} {
			w := world(banText(atomic, "", algorithm+", block_for: 10m"))
			for range 5 {
				w.ask(banAnn...)
			}
			minutes := 0
			for ; w.one("ban=ann").Code == OverLimit; minutes++ {
				require.Less(t, minutes, 100)
				w.clock.Advance(time.Minute)
			}
			want := map[string]int{"": 45, ", algorithm: gcra": 60, ", algorithm: sliding-log": 60}[algorithm]
			require.Equal(t, want, minutes, algorithm)
		}
	})
}

// TestBans_LargeHits: a call of more hits than the ban has room for uses it up, and nobody's refund waits for that.
func TestBans_LargeHits(t *testing.T) {
	banWorlds(t, func(t *testing.T, atomic bool, world func(string) *world) {
		for _, hits := range []uint64{2, 3, 4, 5000, 1 << 40} {
			w := world(banText(atomic, ", algorithm: gcra", ", algorithm: gcra, block_for: 24h"))
			large := []Descriptor{withHits("client=ann", 3), withHits("ban=ann", hits)}
			resp := w.ask(large...)
			if hits == 2 {
				require.Equal(t, OK, resp.Statuses[1].Code)
				resp = w.ask(large...)
			}
			require.Equal(t, OverLimit, resp.Statuses[1].Code, hits)
			require.Equal(t, 24*time.Hour, resp.Statuses[1].RetryAfter)
			require.EqualValues(t, 3, w.series("d.ban").Within)
			require.Equal(t, OverLimit, w.one("ban=ann").Code)
			if w.memory != nil {
				require.Equal(t, 1, w.Engine.Stats().Denied, "the throttle's")
			}
		}
	})
}

// TestBans_Quota: where limits deny only together, calls that pass are no denials.
func TestBans_Quota(t *testing.T) {
	w := newWorld(t, Config{Quota: true}, banText(false, "", ""))
	for range 9 {
		require.Equal(t, OK, w.ask(banAnn...).Code)
	}
	require.Equal(t, 3, w.left("ban=ann"))
	require.Equal(t, OverLimit, w.ask(banAnn[0]).Code)
}

// TestBans_Allocs: neither a call that passes, nor one that is counted, nor one that is denied for its ban allocates.
func TestBans_Allocs(t *testing.T) {
	w := newWorld(t, Config{}, banText(false, ", algorithm: gcra", ", algorithm: gcra, block_for: 24h"))
	req := &Request{Domain: "d", Descriptors: banAnn}
	allocs := testing.AllocsPerRun(1, func() { require.NoError(t, w.Decide(req, &w.resp)) })
	for range 20 {
		allocs += testing.AllocsPerRun(1, func() { _ = w.Decide(req, &w.resp) })
	}
	require.Equal(t, OverLimit, w.resp.Code)
	require.Zero(t, allocs)
}

// failingBans is a Store that does not answer the second call of a Decide.
type failingBans struct {
	*modelStore
	calls, fails int
}

func (s *failingBans) Decide(calls []StoreCall) error {
	if s.calls++; s.calls == s.fails {
		return errors.New("away")
	}
	return s.modelStore.Decide(calls)
}

// TestBans_StoreAway: a denial stands if its count does not.
func TestBans_StoreAway(t *testing.T) {
	clock := sluice.NewManualClock(start)
	s := &failingBans{modelStore: newModelStore(clock), fails: -1}
	e, err := New(mustLoad(t, banText(false, ", algorithm: gcra", ", algorithm: gcra")), Config{Clock: clock, Store: s, Leases: true})
	require.NoError(t, err)
	for i, leases := range []bool{true, false} {
		require.Equal(t, leases, e.now.Load().rules[i].counter.(*modelCounter).limit.Leases, "no process passes who is banned")
	}
	w := &world{tb: t, clock: clock, Engine: e}
	for range 2 {
		w.ask(banAnn...)
	}
	s.calls, s.fails = 0, 3 // behind the call, and the note of its denial
	require.Equal(t, OverLimit, w.ask(banAnn...).Code)
	require.EqualValues(t, 1, w.Engine.Stats().Uncounted)
	require.Equal(t, 3, w.left("ban=ann"))
}

// TestBans_AtOnce: denials at the same time are all counted.
func TestBans_AtOnce(t *testing.T) {
	w := newWorld(t, Config{}, "domain: d\ndescriptors:\n- {key: client, rate_limit: {unit: hour, requests_per_unit: 0, name: throttle}}\n"+
		"- {key: ban, rate_limit: {unit: day, requests_per_unit: 1000000, counts_denials_of: throttle}}\n")
	const callers, each = 8, 500
	done := make(chan error)
	for range callers {
		go func() {
			var resp Response
			var err error
			for range each {
				err = errors.Join(err, w.Decide(&Request{Domain: "d", Descriptors: banAnn}, &resp))
			}
			done <- err
		}()
	}
	for range callers {
		require.NoError(t, <-done)
	}
	require.Equal(t, 1_000_000-callers*each, w.left("ban=ann"))
	require.EqualValues(t, callers*each, w.series("d.ban").Within)
}
