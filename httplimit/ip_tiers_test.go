package httplimit

import (
	"encoding/binary"
	"math"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// pass charges one unit to all policies, as the middleware does.
func pass(tb testing.TB, policies []Policy, r *http.Request) bool {
	tb.Helper()
	charges := make([]sluice.Charge, len(policies))
	for i, p := range policies {
		charges[i] = sluice.Charge{Key: p.Limiter.Key(keyOf(tb, p.Key, r)), Cost: 1}
	}
	return sluice.TakeAll(charges...).Allowed
}

func tiers(tb testing.TB, c sluice.Config, growth int) []Policy {
	tb.Helper()
	policies, err := IPTiers(IPConfig{}, c, growth)
	require.NoError(tb, err)
	require.Len(tb, policies, 3)
	return policies
}

// network returns the nth /64 of 2001:db8::/32, as a peer.
func network(n uint32) *http.Request {
	b := netip.MustParseAddr("2001:db8::1").As16()
	binary.BigEndian.PutUint32(b[4:], n)
	return fromPeer(netip.AddrPortFrom(netip.AddrFrom16(b), 80).String())
}

func TestIPTiers_OwningABlockBuysLittle(t *testing.T) {
	const burst, growth = 5, 4
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket, sluice.SlidingWindow, sluice.SlidingLog, sluice.FixedWindow} {
		clock := sluice.NewManualClock(time.Unix(1e9, 0))
		c := sluice.Config{Algorithm: algorithm, Limit: sluice.PerHour(burst), Clock: clock}
		count := func(networks, stride, requests int) (admitted int) {
			policies := tiers(t, c, growth)
			for n := 0; n < networks; n += stride {
				for range requests {
					if pass(t, policies, network(uint32(n))) {
						admitted++
					}
				}
			}
			for _, p := range policies {
				require.LessOrEqual(t, p.Limiter.Len(), burst*growth*growth*2, "denied networks take no memory")
			}
			return admitted
		}
		stride := 128
		if algorithm == sluice.GCRA {
			stride = 1 // every /64, once
		}
		require.Equal(t, burst, count(1, 1, 20), "%v: a /64", algorithm)
		require.Equal(t, 2*burst, count(2, 1, 20), "%v: two /64 of a /56", algorithm)
		require.Equal(t, growth*burst, count(256, 1, 6), "%v: a /56", algorithm)
		require.Equal(t, growth*growth*burst, count(65536, stride, 1), "%v: a /48", algorithm)
		require.Equal(t, 2*growth*growth*burst, count(2*65536, 128, 1), "%v: two /48", algorithm)
	}
}

// Neither an IPv4 address nor one in an IPv6 address is denied because of neighbours,
// or gets more than the first tier's budget.
func TestIPTiers_IPv4IsHeldToTheFirstTier(t *testing.T) {
	const burst = 3
	for _, base := range []string{"192.0.2.0", "::ffff:192.0.2.0", "64:ff9b::192.0.2.0", "64:ff9b:1::192.0.2.0", "2001::192.0.2.0"} {
		policies := tiers(t, sluice.Config{Limit: sluice.PerHour(burst), Clock: sluice.NewManualClock(time.Unix(1e9, 0))}, 2)
		a := netip.MustParseAddr(base)
		for range 256 {
			for n := range 2 * burst {
				require.Equal(t, n < burst, pass(t, policies, fromPeer(a.String())), "%v, request %d", a, n)
			}
			a = a.Next()
		}
	}
}

func TestIPTiers_Policies(t *testing.T) {
	policies := tiers(t, sluice.Config{Limit: sluice.PerMinute(10).WithBurst(3), MaxKeys: 100, Soft: 1}, 4)
	r := fromPeer("[2001:db8:1:1ff::1]:80")
	for i, want := range []struct {
		name, key string
		burst     int
	}{{"ip-64", "2001:db8:1:1ff::/64", 3}, {"ip-56", "2001:db8:1:100::/56", 12}, {"ip-48", "2001:db8:1::/48", 48}} {
		p := policies[i]
		require.Equal(t, want.name, p.Name)
		require.Equal(t, want.key, keyOf(t, p.Key, r))
		require.Nil(t, p.Cost)
		d := p.Limiter.Key("x").Peek(1)
		require.Equal(t, want.burst, d.Limit)
		const day = 24 * time.Hour
		require.Equal(t, want.burst+1+10*want.burst/3*24*60, p.Limiter.WorstCase(day), "rates grow with bursts, Soft does not")
	}
}

func TestIPTiers_FindsClientsBehindProxies(t *testing.T) {
	ip := IPConfig{TrustedProxies: prefixes("10.0.0.1/32"), Header: "X-Forwarded-For", IPv4Bits: 24}
	policies, err := IPTiers(ip, sluice.Config{Limit: sluice.PerMinute(10)}, 4)
	require.NoError(t, err)
	for _, p := range policies {
		require.Equal(t, "203.0.113.0/24", keyOf(t, p.Key, fromPeer("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6, 203.0.113.77")))
		requireKeyError(t, p.Key, fromPeer("10.0.0.1:80", "X-Forwarded-For", "unknown"), ErrBadKey)
	}
}

func TestIPTiers_Errors(t *testing.T) {
	limit := sluice.PerMinute(10)
	for _, c := range []struct {
		want   string
		ip     IPConfig
		limit  sluice.Limit
		growth int
	}{
		{"IPConfig.IPv6Bits: 64 with IPTiers, which sets it for each tier; want 0", IPConfig{IPv6Bits: 64}, limit, 4},
		{"IPConfig.IPv4Bits: 8 is not a length of prefix to limit by; want 16 to 32, or 0 for 32", IPConfig{IPv4Bits: 8}, limit, 4},
		{"IPTiers.growth: 0; want 2 to 255, since from 256 on wider tiers deny nothing", IPConfig{}, limit, 0},
		{"IPTiers.growth: 1; want 2 to 255, since from 256 on wider tiers deny nothing", IPConfig{}, limit, 1},
		{"IPTiers.growth: 256; want 2 to 255, since from 256 on wider tiers deny nothing", IPConfig{}, limit, 256},
		{"IPTiers.base.Limit: ip-56: 4 times a limit of unlimited is too large to count; want a smaller limit", IPConfig{}, sluice.Unlimited, 4},
	} {
		policies, err := IPTiers(c.ip, sluice.Config{Limit: c.limit}, c.growth)
		require.Nil(t, policies)
		require.EqualError(t, err, "httplimit: "+c.want)
		require.ErrorAs(t, err, new(*ConfigError))
	}
	for _, large := range []sluice.Limit{
		sluice.Per(math.MaxInt>>23, time.Hour).WithBurst(math.MaxInt >> 5),
		sluice.Per(math.MaxInt>>5, 1000*24*time.Hour).WithBurst(1),
	} {
		_, err := sluice.New(sluice.Config{Limit: large})
		require.NoError(t, err, "for the first tier it is not too large")
		_, err = IPTiers(IPConfig{}, sluice.Config{Limit: large}, 255)
		require.ErrorContains(t, err, "httplimit: IPTiers.base.Limit: ip-56: 255 times a limit of "+large.String()+" is too large to count")
	}
	_, err := IPTiers(IPConfig{}, sluice.Config{}, 4)
	require.EqualError(t, err, "httplimit: ip-64: sluice: Limit.Period: 0s is not positive; want a positive duration, as in sluice.PerSecond(100)")
	var inner *sluice.ConfigError
	require.ErrorAs(t, err, &inner)
	require.Equal(t, "Limit.Period", inner.Field)
	_, err = IPTiers(IPConfig{}, sluice.Config{Limit: sluice.PerHour(1 << 18), Algorithm: sluice.SlidingLog}, 4)
	require.ErrorAs(t, err, &inner, "a limit that is too large for the algorithm only in a wider tier")

	policies, err := IPTiers(IPConfig{}, sluice.Config{Limit: sluice.DenyAll}, 255)
	require.NoError(t, err)
	require.False(t, pass(t, policies, network(0)))
}

// TestIPTiers_AtOnce: a limit of units in use grows as a rate does, and stays one of units in use.
func TestIPTiers_AtOnce(t *testing.T) {
	policies, err := IPTiers(IPConfig{}, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(10, time.Minute)}, 4)
	require.NoError(t, err)
	for i, want := range []string{"10 at once, lease 1m", "40 at once, lease 1m", "160 at once, lease 1m"} {
		require.Equal(t, want, policies[i].Limiter.Config().Limit.String())
	}
}
