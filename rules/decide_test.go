package rules

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

const minuteRules = `
domain: d
descriptors:
- {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: two, rate_limit: {unit: minute, requests_per_unit: 2, name: two}}
- {key: ban, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: quota2, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: open}
`

func TestDecide_Counts(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	// start is 23 s after a full minute, and a bit.
	st := w.one("ten=a")
	require.Equal(t, Status{Code: OK, Rule: st.Rule, Limited: true, Requests: 10, Unit: Minute, Period: time.Minute,
		Remaining: 9, ResetAfter: 37 * time.Second}, st)
	require.Equal(t, "d.ten", st.Rule.Path())

	st = w.ask(withHits("ten=a", 9)).Statuses[0]
	require.Equal(t, OK, st.Code)
	require.Zero(t, st.Remaining)

	resp := w.ask(describe("ten=a"))
	require.Equal(t, OverLimit, resp.Code)
	require.Equal(t, OverLimit, resp.Statuses[0].Code)
	require.Equal(t, 37*time.Second, resp.Statuses[0].ResetAfter)
	require.Equal(t, 37*time.Second-456_789_012, resp.Statuses[0].RetryAfter)
	require.Equal(t, 0, resp.Tightest)
	retry := resp.Statuses[0].RetryAfter
	require.Equal(t, map[string]Calls{"d": {OK: 2, OverLimit: 1}}, w.Engine.Stats().Calls)

	require.Equal(t, OK, w.one("ten=b").Code, "another value")
	w.clock.Advance(retry - 1)
	require.Equal(t, OverLimit, w.one("ten=a").Code)
	w.clock.Advance(1)
	st = w.one("ten=a")
	require.EqualValues(t, 9, st.Remaining)
	require.Equal(t, time.Minute, st.ResetAfter, "at the window's begin")
}

// TestDecide_DeniedHitsCount, also those that would have fitted in part.
func TestDecide_DeniedHitsCount(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	w.ask(withHits("ten=a", 8))
	require.Equal(t, OverLimit, w.ask(withHits("ten=a", 3)).Code)
	require.Equal(t, OverLimit, w.ask(withHits("ten=a", 1)).Code)
	s := w.series("d.ten")
	require.Equal(t, Series{Domain: "d", Path: "d.ten", Levels: []string{"ten"}, Total: 12, Within: 8, Near: 2, Over: 2}, s)
}

func TestDecide_Looks(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	require.Equal(t, 10, w.left("ten=a"))
	w.ask(withHits("ten=a", 10))
	require.Equal(t, OK, w.ask(withHits("ten=a", 0)).Code, "full to the brim")
	w.ask(withHits("ten=a", 1))
	require.Equal(t, OverLimit, w.ask(withHits("ten=a", 0)).Code)
	require.EqualValues(t, 11, w.series("d.ten").Total)
}

func TestDecide_Refund(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules+"- {key: own, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding-log}}\n")
	refund := func(s string, n uint64) Descriptor { return Descriptor{Entries: entries(s), Hits: &n, Refund: true} }
	for _, path := range []string{"ten", "own"} {
		key := path + "=a"
		w.ask(withHits(key, 9))
		st := w.ask(refund(key, 4)).Statuses[0]
		require.Equal(t, OK, st.Code)
		require.EqualValues(t, 5, st.Remaining, path)
		require.Positive(t, st.ResetAfter)
		require.EqualValues(t, 10, w.ask(refund(key, 1<<40)).Statuses[0].Remaining, "nothing beyond the limit: %s", path)
		w.ask(withHits(key, 10))
		require.Equal(t, OverLimit, w.one(key).Code, "nothing was saved up: %s", path)
		s := w.series("d." + path)
		require.Equal(t, uint64(4+1<<32), s.Refunded)
		require.EqualValues(t, 20, s.Total, path)
		require.EqualValues(t, 19, s.Within, path)
	}
	// A count above the limit stays above it, and what gives back passes all the same.
	w.ask(withHits("two=a", 9))
	resp := w.ask(refund("two=a", 3))
	require.Equal(t, OK, resp.Code)
	require.Zero(t, resp.Statuses[0].Remaining)
	require.False(t, resp.Statuses[0].Over)
	require.Equal(t, OverLimit, w.one("two=a").Code)

	// One hit where none is given; no rule, and no limit, give nothing back.
	w.ask(Descriptor{Entries: entries("ten=a"), Refund: true}, Descriptor{Entries: entries("open=a"), Refund: true}, Descriptor{Entries: entries("free=a"), Refund: true})
	require.Equal(t, uint64(5+1<<32), w.series("d.ten").Refunded)

	// An override, and a window that has ended: there is nothing to give back of that.
	o := override("ten=b", 5, Minute)
	w.ask(o)
	o.Refund = true
	require.EqualValues(t, 5, w.ask(o).Statuses[0].Remaining)
	require.EqualValues(t, 1, w.series("override").Refunded)
	w.ask(withHits("ten=c", 3))
	w.clock.Advance(time.Minute)
	require.EqualValues(t, 10, w.ask(refund("ten=c", 3)).Statuses[0].Remaining)
}

// TestDecide_RefundTogether: a call that is stopped gives nothing back, neither to a window nor to a limiter.
func TestDecide_RefundTogether(t *testing.T) {
	text := minuteRules + "- {key: own, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding-log}}\n"
	for _, text := range []string{text, strings.Replace(text, "domain: d", "domain: d\nsluice: {atomic: true}", 1)} {
		for _, path := range []string{"ten", "own"} {
			w := newWorld(t, Config{StopWhenOver: true}, text)
			key, n := path+"=a", uint64(2)
			w.ask(withHits(key, 9))
			refund := Descriptor{Entries: entries(key), Hits: &n, Refund: true}
			require.Equal(t, OverLimit, w.ask(refund, describe("ban=a")).Code)
			require.Equal(t, 1, w.left(key), path)
			require.Equal(t, OK, w.ask(refund, describe("two=a")).Code)
			require.Equal(t, 3, w.left(key), path)
			require.EqualValues(t, 2, w.series("d."+path).Refunded)
		}
	}
}

func TestDecide_RequestHits(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	n := uint64(2)
	req := Request{Domain: "d", Hits: 4, Descriptors: []Descriptor{describe("ten=a"), {Entries: entries("ten=b"), Hits: &n}}}
	require.NoError(t, w.Decide(&req, &w.resp))
	require.EqualValues(t, 6, w.resp.Statuses[0].Remaining)
	require.EqualValues(t, 8, w.resp.Statuses[1].Remaining)
}

// TestDecide_HugeHits: a call counts for at most 2^32, and counts never wrap.
func TestDecide_HugeHits(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules+"- {key: most, rate_limit: {unit: second, requests_per_unit: "+maxRequestsText+"}}\n")
	for range 5 {
		require.Equal(t, OverLimit, w.ask(withHits("ten=a", math.MaxUint64)).Code)
	}
	require.Equal(t, OverLimit, w.one("ten=a").Code)
	s := w.series("d.ten")
	require.Equal(t, uint64(5<<32+1), s.Total)
	require.EqualValues(t, s.Total-10, s.Over)

	require.Equal(t, OK, w.ask(withHits("most=a", maxRequests)).Code)
	require.Equal(t, OK, w.ask(withHits("most=a", 0)).Code)
	require.Equal(t, OverLimit, w.ask(withHits("most=a", 1)).Code)
	require.EqualValues(t, 1, w.series("d.most").Over)
}

func TestDecide_Kinds(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	st := w.one("ban=a")
	require.Equal(t, OverLimit, st.Code)
	require.Equal(t, sluice.Never, st.RetryAfter)
	require.Equal(t, OK, w.ask(withHits("ban=b", 0)).Code)

	st = w.one("free=a")
	require.Equal(t, Status{Code: OK, Rule: st.Rule, Remaining: math.MaxUint32}, st)
	require.True(t, st.Rule.Unlimited())
	w.ask(withHits("free=a", 4))
	w.ask(withHits("free=b", 0))
	require.Equal(t, Series{Domain: "d", Path: "d.free", Levels: []string{"free"}, Unlimited: 5}, w.series("d.free"))

	require.Equal(t, Status{Code: OK}, w.one("open=a"))
	require.Equal(t, Status{Code: OK}, w.one("unheard=of"))
	require.Equal(t, -1, w.resp.Tightest)
}

// TestDecide_EndlessBlock: a block that never ends never ends in the future.
func TestDecide_EndlessBlock(t *testing.T) {
	for _, limit := range []string{"period: 1s", "unit: second", "unit: day, algorithm: gcra", "unit: day, algorithm: sliding-log"} {
		w := newWorld(t, Config{}, oneRule("{"+limit+", requests_per_unit: 1, block_for: 2562047h}"))
		w.one("k=a")
		for _, st := range []Status{w.one("k=a"), w.one("k=a"), w.ask(withHits("k=a", 0)).Statuses[0]} {
			require.Equal(t, OverLimit, st.Code, limit)
			require.Equal(t, sluice.Never, st.RetryAfter, limit)
			require.Equal(t, sluice.Never, st.ResetAfter, limit)
		}
	}
}

func TestRoundUp(t *testing.T) {
	const last = sluice.Never / time.Second * time.Second
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Second, time.Second: time.Second, time.Second + 1: 2 * time.Second, last - time.Second: last - time.Second,
		last - time.Second + 1: last, last - 1: last, last: last, last + 1: sluice.Never, sluice.Never - 1: sluice.Never, sluice.Never: sluice.Never,
	} {
		require.Equal(t, want, roundUp(d), d)
	}
}

func TestDecide_ShadowRule(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	w.one("shadow=a")
	for range 3 {
		st := w.one("shadow=a")
		require.Equal(t, OK, st.Code)
		require.True(t, st.Over)
		require.Zero(t, st.Remaining)
		require.Equal(t, OK, w.resp.Code)
	}
	require.Equal(t, Series{Domain: "d", Path: "d.shadow", Levels: []string{"shadow"}, Total: 4, Within: 1, Near: 1, Over: 3, Shadow: 3}, w.series("d.shadow"))
}

func TestDecide_Quotas(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	both := func() *Response { return w.ask(describe("quota=a"), describe("quota2=a")) }
	require.Equal(t, OK, both().Code)
	resp := both()
	require.Equal(t, OK, resp.Code, "one quota of two is over")
	require.Equal(t, OverLimit, resp.Statuses[0].Code)
	resp = both()
	require.Equal(t, OverLimit, resp.Code, "both are")
	require.Equal(t, OK, w.ask(describe("quota=a"), describe("quota2=fresh")).Code)
	require.Equal(t, OverLimit, w.one("quota=a").Code, "a single one denies")
	require.Equal(t, OverLimit, w.resp.Code)

	w.ask(withHits("two=a", 3))
	require.Equal(t, OverLimit, w.ask(describe("two=a"), describe("quota2=x")).Code, "what is no quota denies by itself")
	require.Equal(t, 0, w.resp.Tightest)
}

func TestDecide_GlobalQuota(t *testing.T) {
	w := newWorld(t, Config{Quota: true}, minuteRules)
	w.ask(withHits("two=a", 3))
	require.Equal(t, OK, w.ask(describe("two=a"), describe("unheard=of")).Code)
	require.Equal(t, OverLimit, w.ask(describe("two=a")).Code)
}

// TestDecide_GlobalQuotaUnlimited: an unlimited rule is no quota that could have passed.
func TestDecide_GlobalQuotaUnlimited(t *testing.T) {
	for _, stop := range []bool{false, true} {
		w := newWorld(t, Config{Quota: true, StopWhenOver: stop}, minuteRules)
		w.ask(withHits("two=a", 3))
		require.Equal(t, OverLimit, w.ask(describe("two=a"), describe("free=a")).Code)
		require.Equal(t, OverLimit, w.ask(describe("free=a"), describe("two=a")).Code)
		require.Equal(t, OK, w.ask(describe("free=a")).Code)
		require.Equal(t, OK, w.ask(describe("two=a"), describe("free=a"), describe("open=a")).Code, "one without a rule is")
	}
}

// TestDecide_AllIsNear: without a share all hits up to the limit are near it.
func TestDecide_AllIsNear(t *testing.T) {
	w := newWorld(t, Config{NearRatio: -1}, minuteRules)
	w.ask(withHits("ten=a", 3))
	w.ask(withHits("ten=a", 9))
	require.Equal(t, Series{Domain: "d", Path: "d.ten", Levels: []string{"ten"}, Total: 12, Within: 3, Near: 10, Over: 2}, w.series("d.ten"))
}

func TestDecide_GlobalShadow(t *testing.T) {
	w := newWorld(t, Config{Shadow: true}, minuteRules)
	w.ask(withHits("two=a", 3))
	resp := w.ask(describe("two=a"))
	require.Equal(t, OK, resp.Code)
	require.True(t, resp.WouldDeny)
	require.Equal(t, OverLimit, resp.Statuses[0].Code)
	require.EqualValues(t, 2, w.Engine.Stats().GlobalShadow)
	require.Equal(t, map[string]Calls{"d": {OK: 2}}, w.Engine.Stats().Calls)
	require.False(t, w.ask(describe("two=b")).WouldDeny)
}

func TestDecide_Tightest(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	require.Equal(t, 2, w.ask(describe("open=a"), describe("ten=a"), describe("two=a"), describe("two=b")).Tightest)
	w.ask(withHits("two=c", 2))
	w.ask(withHits("ten=c", 10))
	require.Equal(t, 1, w.ask(describe("two=c"), describe("ten=c"), describe("two=d")).Tightest, "the last that denies")
}

func TestDecide_DeniedBy(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	require.Empty(t, w.ask(withHits("two=a", 2), withHits("ten=a", 10)).DeniedBy())
	require.Equal(t, "d.two", w.ask(describe("two=a"), describe("two=b")).DeniedBy())
	require.Equal(t, "d.ban", w.ask(describe("two=a"), describe("ban=a"), describe("ten=b")).DeniedBy(), "the last of them")
	require.Equal(t, "d.two", w.ask(describe("two=a"), withHits("quota=a", 2)).DeniedBy(), "not the quota")
	require.Equal(t, "d.quota", w.ask(withHits("shadow=a", 2), withHits("quota=a", 2)).DeniedBy(), "not the one with as little left, in shadow mode")
	require.Equal(t, "override", w.ask(override("ten=secret", 0, Day)).DeniedBy())
	require.Empty(t, w.ask(withHits("shadow=a", 9)).DeniedBy())
	shadow := newWorld(t, Config{Shadow: true}, minuteRules)
	require.Equal(t, "d.ban", shadow.ask(describe("ban=a")).DeniedBy())
	require.Empty(t, shadow.ask(describe("ten=a")).DeniedBy())
}

func TestDecide_Replaces(t *testing.T) {
	w := newWorld(t, Config{}, `
domain: d
descriptors:
- {key: general, rate_limit: {unit: minute, requests_per_unit: 1, name: general}}
- {key: special, rate_limit: {unit: minute, requests_per_unit: 5, name: special, replaces: [{name: general}]}}
- {key: vip, rate_limit: {unlimited: true, name: vip, replaces: [{name: special}, {name: general}, {name: nobody}]}}
- {key: all, rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: vip}]}}
- {key: left, rate_limit: {unit: minute, requests_per_unit: 5, name: left, replaces: [{name: right}]}}
- {key: right, rate_limit: {unit: minute, requests_per_unit: 5, name: right, replaces: [{name: left}]}}
`)
	resp := w.ask(describe("general=a"), describe("special=a"))
	require.Equal(t, Status{Code: OK}, resp.Statuses[0])
	require.EqualValues(t, 4, resp.Statuses[1].Remaining)
	require.Zero(t, w.series("d.general").Total)

	resp = w.ask(describe("general=a"), describe("special=a"), describe("vip=a"))
	require.Equal(t, Status{Code: OK}, resp.Statuses[0])
	require.Equal(t, Status{Code: OK}, resp.Statuses[1])
	require.Equal(t, uint32(math.MaxUint32), resp.Statuses[2].Remaining)

	resp = w.ask(describe("vip=a"), describe("all=a"))
	require.Equal(t, uint32(math.MaxUint32), resp.Statuses[0].Remaining, "an unlimited rule is not dropped")

	resp = w.ask(describe("left=a"), describe("right=a"))
	require.Equal(t, Status{Code: OK}, resp.Statuses[0], "each replaces the other")
	require.Equal(t, Status{Code: OK}, resp.Statuses[1])
}

func TestDecide_Override(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	st := w.ask(override("ten=a", 3, Minute)).Statuses[0]
	require.Nil(t, st.Rule)
	require.EqualValues(t, 2, st.Remaining)
	require.EqualValues(t, 8, w.one("ten=a").Remaining, "rule and override of a unit share a count")
	require.Equal(t, OverLimit, w.ask(override("ten=a", 1, Minute)).Code)
	require.EqualValues(t, 6, w.one("ten=a").Remaining)
	require.EqualValues(t, 4, w.ask(override("ten=a", 5, Week)).Statuses[0].Remaining, "another unit counts by itself")
	require.EqualValues(t, 0, w.ask(override("no,rule=b", 1, Second)).Statuses[0].Remaining)
	require.Equal(t, Series{Domain: "d", Path: "override", Levels: []string{"override"}, Total: 4, Within: 3, Near: 4, Over: 1}.Total, w.series("override").Total)

	for _, o := range []Override{{1, UnknownUnit}, {1, 8}, {1, 255}} {
		d := Descriptor{Entries: entries("ten=a"), Override: &o}
		var invalid *InvalidError
		require.ErrorAs(t, w.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("ten=a"), d}}, &w.resp), &invalid)
	}
	require.Equal(t, 6, w.left("ten=a"), "an error counts nothing")
	require.NoError(t, w.Decide(&Request{Domain: "unknown", Descriptors: []Descriptor{override("a=b", 0, Day)}}, &w.resp))
	require.Equal(t, Status{Code: OK}, w.resp.Statuses[0])
}

func TestDecide_Refused(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	require.ErrorIs(t, w.Decide(&Request{Descriptors: []Descriptor{describe("ten=a")}}, &w.resp), ErrNoDomain)
	require.ErrorIs(t, w.Decide(&Request{Domain: "d"}, &w.resp), ErrNoDescriptors)
}

func TestDecide_UnknownDomains(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules)
	for i := range 300 {
		require.NoError(t, w.Decide(&Request{Domain: fmt.Sprint("unknown ", i), Descriptors: []Descriptor{describe("ten=a"), describe("two=a")}}, &w.resp))
		require.Equal(t, OK, w.resp.Code)
	}
	s := w.Engine.Stats()
	require.EqualValues(t, 600, s.UnknownDomains)
	require.Len(t, s.UnknownDomainsByName, maxUnknownDomains+1)
	require.EqualValues(t, 400, s.UnknownDomainsByName["other"])
}

// TestDecide_JoinedKeys: what looks the same when joined does not share a counter, as it does upstream.
func TestDecide_JoinedKeys(t *testing.T) {
	w := newWorld(t, Config{}, `
domain: d
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: user_id, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: user, value: x, descriptors: [{key: id, rate_limit: {unit: minute, requests_per_unit: 1}}]}
`)
	require.Equal(t, OK, w.one("user=id_42").Code)
	require.Equal(t, OK, w.one("user_id=42").Code)
	require.Equal(t, OK, w.one("user=x_id_42").Code)
	require.Equal(t, OK, w.one("user=x,id=42").Code)
	require.Equal(t, OverLimit, w.one("user_id=42").Code)
}

func TestDecide_UnitsAndWindows(t *testing.T) {
	for _, u := range units {
		w := newWorld(t, Config{}, minuteRules)
		st := w.ask(override("a=b", 5, u)).Statuses[0]
		n := int64(u.Period() / time.Second)
		want := n - start.Unix()%n
		require.Equal(t, time.Duration(want)*time.Second, st.ResetAfter, u)
		w.clock.Set(time.Unix(start.Unix()+want, 0).Add(-1))
		require.EqualValues(t, 3, w.ask(override("a=b", 5, u)).Statuses[0].Remaining, u)
		w.clock.Advance(1)
		require.EqualValues(t, 4, w.ask(override("a=b", 5, u)).Statuses[0].Remaining, u)
	}
}

func TestDecide_ShareThreshold(t *testing.T) {
	w := newWorld(t, Config{}, `
domain: d
descriptors:
- {key: file, value: "a/*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: path, value: "p/*", share_threshold: true, descriptors: [{key: type, value: "t*", rate_limit: {unit: minute, requests_per_unit: 3}}]}
`)
	w.one("file=a/1")
	require.EqualValues(t, 1, w.one("file=a/2").Remaining)
	require.EqualValues(t, 0, w.one("file=a/*").Remaining, "the pattern's own spelling")
	require.Equal(t, OverLimit, w.one("file=a/3").Code)
	require.EqualValues(t, 2, w.ask(override("file=a/*", 3, Minute)).Statuses[0].Remaining, "an override is not of the rule")
	require.EqualValues(t, 2, w.one("path=p/1,type=t1").Remaining)
	require.EqualValues(t, 1, w.one("path=p/2,type=t1").Remaining)
	require.EqualValues(t, 2, w.one("path=p/2,type=t2").Remaining, "only the first level is shared")
}

func TestDecide_DoesNotAllocate(t *testing.T) {
	w := newWorld(t, Config{}, minuteRules+"- {key: detailed, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}\n- {key: gcra, rate_limit: {unit: day, requests_per_unit: 5, algorithm: gcra}}\n")
	stop := newWorld(t, Config{StopWhenOver: true}, minuteRules)
	req := Request{Domain: "d", Descriptors: []Descriptor{describe("ten=a"), describe("two=a"), describe("detailed=value"), describe("gcra=a"), override("a=b", 5, Day), describe("none=a")}}
	for name, w := range map[string]*world{"usual": w, "stop": stop} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = w.Decide(&req, &w.resp) }), name)
	}
	assert.Len(t, w.resp.Statuses, 6)
}
