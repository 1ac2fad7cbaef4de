package sluice

import "github.com/sluice-go/sluice/metrics"

var (
	decisionsMetric = &metrics.Desc{Name: "sluice.decisions", Unit: "call", Labels: []string{"outcome"},
		Help: "Calls by outcome: admitted; denied; blocked, and so denied; over the limit, and admitted in shadow mode."}
	evictedMetric = &metrics.Desc{Name: "sluice.limiter.evicted", Unit: "key",
		Help: "Keys that were dropped for want of room while they still counted."}
	untrackedMetric = &metrics.Desc{Name: "sluice.limiter.untracked", Unit: "call",
		Help: "Calls for new keys that were decided without a count, since there was no room for them."}
	keysMetric    = &metrics.Desc{Name: "sluice.limiter.keys", Kind: metrics.UpDown, Unit: "key", Help: "Tracked keys."}
	waitingMetric = &metrics.Desc{Name: "sluice.limiter.waiting", Kind: metrics.UpDown, Unit: "call",
		Help: "Calls that wait now until they are admitted."}

	limiterMetrics = []*metrics.Desc{decisionsMetric, evictedMetric, untrackedMetric, keysMetric, waitingMetric}
)

// Metrics returns what the limiter counts, for promsluice, otelsluice or another translator, under a name that is the label
// "limiter". The program chooses the name. Do not make a limiter for each client: its keys are for that.
//
//	sluice.decisions          calls by outcome: admitted; denied; blocked, which are denied since their key is blocked; and
//	                          shadow, which Config.Shadow has admitted although they are over the limit. Each call is
//	                          in one of them. Without Config.Stats there are none
//	sluice.limiter.keys       tracked keys
//	sluice.limiter.evicted    live keys that were dropped for want of room
//	sluice.limiter.untracked  calls for new keys for which there was no room
//	sluice.limiter.waiting    calls of Wait that wait now
//
// A call counts once, whatever it costs: a limiter counts neither units nor open reservations.
func (l *Limiter) Metrics(name string) metrics.Set {
	c := l.made().Config()
	return metrics.Set{
		Labels: []metrics.Label{{Name: "limiter", Value: name}},
		Descs:  limiterMetrics,
		Read: func(yield metrics.Yield) {
			s := l.Stats()
			switch {
			case c.Stats && c.Shadow:
				yield(decisionsMetric, s.Admitted-s.WouldDeny, "admitted")
				yield(decisionsMetric, s.WouldDeny, "shadow")
			case c.Stats:
				yield(decisionsMetric, s.Admitted, "admitted")
				yield(decisionsMetric, s.Blocked, "blocked")
				yield(decisionsMetric, s.Denied-s.Blocked, "denied")
			}
			yield(evictedMetric, s.Evicted)
			yield(untrackedMetric, s.Untracked)
			yield(keysMetric, uint64(s.Keys))
			yield(waitingMetric, uint64(s.Waiting))
		},
	}
}
