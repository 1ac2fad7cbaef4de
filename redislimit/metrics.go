package redislimit

import (
	"fmt"

	"github.com/sluice-go/sluice/metrics"
)

var (
	decisionsMetric = &metrics.Desc{Name: "sluice.tier.decisions", Unit: "call", Labels: []string{"source"},
		Help: "Calls by what has decided them: Redis, a denial that still holds, units that Redis has lent, or the fallback."}
	degradedMetric = &metrics.Desc{Name: "sluice.tier.degraded", Kind: metrics.Gauge,
		Help: "1 while the keys of at least one primary are decided without it, or else 0."}
	outagesMetric = &metrics.Desc{Name: "sluice.tier.outages", Unit: "outage", Help: "Times that a primary was no longer asked."}
	errorsMetric  = &metrics.Desc{Name: "sluice.tier.errors", Unit: "error", Labels: []string{"cause"},
		Help: "Calls that were late or failed, and scripts for which the client had no connection."}
	scriptsMetric  = &metrics.Desc{Name: "sluice.tier.scripts", Unit: "script", Help: "Scripts that were sent to Redis."}
	ledMetric      = &metrics.Desc{Name: "sluice.tier.led_scripts", Unit: "script", Help: "Scripts that callers have sent to Redis themselves."}
	lentMetric     = &metrics.Desc{Name: "sluice.tier.lent_units", Unit: "unit", Help: "Units that Redis has lent."}
	returnedMetric = &metrics.Desc{Name: "sluice.tier.returned_units", Unit: "unit", Help: "Units that Redis has lent, and that were given back unused."}

	tierMetrics = []*metrics.Desc{decisionsMetric, degradedMetric, outagesMetric, errorsMetric, scriptsMetric, ledMetric, lentMetric, returnedMetric}
)

// Counted is asked by Metrics: a Tier, a Store, or a server of rulestore.Upstream.
type Counted interface {
	Stats() Stats
	Mode() Mode
}

// Metrics returns the counts of a Tier or a Store, for promsluice, otelsluice or another translator, under a name that is the
// label "limiter", as with limiters: a Tier and a limiter can have the same name. A Tier that is closed still tells its counts.
//
//	sluice.tier.decisions       decisions by source: redis, cache, lease or fallback: see Source
//	sluice.tier.degraded        1 while the keys of at least one primary are decided without it, or else 0
//	sluice.tier.outages         times that a primary was no longer asked
//	sluice.tier.errors          by cause: late, calls that were not answered within the budget; failed, calls that the
//	                            client or Redis answered with an error; pool_timeout, scripts for which the client had
//	                            no connection; dial, scripts and probes for which it could make none
//	sluice.tier.scripts         scripts that were sent
//	sluice.tier.led_scripts     of these, scripts that callers have sent themselves
//	sluice.tier.lent_units      units that Redis has lent
//	sluice.tier.returned_units  of these, units that were given back unused
//
// A script for which there was no connection makes calls late or failed, so the causes do not add up to anything.
func Metrics(name string, of Counted) metrics.Set {
	tier, isTier := of.(*Tier)
	store, isStore := of.(*Store)
	if of == nil || isTier && tier == nil || isStore && store == nil {
		panic(fmt.Sprintf("redislimit: Metrics: what is to be called %q is nil; want a Tier of NewTier, or a Store of NewStore", name))
	}
	return metrics.Set{Labels: []metrics.Label{{Name: "limiter", Value: name}}, Descs: tierMetrics, Read: func(yield metrics.Yield) {
		s := of.Stats()
		yield(decisionsMetric, s.Redis, FromRedis.String())
		yield(decisionsMetric, s.Cache, FromCache.String())
		yield(decisionsMetric, s.Lease, FromLease.String())
		yield(decisionsMetric, s.Fallback, FromFallback.String())
		degraded := uint64(0)
		if of.Mode() == ModeDegraded {
			degraded = 1
		}
		yield(degradedMetric, degraded)
		yield(outagesMetric, s.Outages)
		yield(errorsMetric, s.Late, "late")
		yield(errorsMetric, s.Failed, "failed")
		yield(errorsMetric, s.PoolTimeouts, "pool_timeout")
		yield(errorsMetric, s.DialErrors, "dial")
		yield(scriptsMetric, s.Scripts)
		yield(ledMetric, s.Led)
		yield(lentMetric, s.Lent)
		yield(returnedMetric, s.Returned)
	}}
}
