package service

import (
	"time"

	"github.com/sluice-go/sluice/rules"
)

// noticeEvery is how often the service checks whether it has reached a bound.
const noticeEvery = 10 * time.Second

// noticeAgain is how long the service does not report the same bound again.
const noticeAgain = time.Hour

// notices report bounds that were reached, since limits or statistics are then incomplete.
type notices struct {
	last         rules.Stats
	room, series time.Time // when each was reported
}

// notice checks once.
func (s *server) notice(now time.Time) {
	n, stats := &s.notices, s.engine.Stats()
	evicted, untracked := stats.Evicted-n.last.Evicted, stats.Untracked-n.last.Untracked
	if evicted+untracked > 0 && now.Sub(n.room) >= noticeAgain {
		n.room = now
		s.log.Warn("there are more keys than --max-keys, or max_keys of a domain: limits are weaker for keys that are dropped, or not tracked",
			"dropped", evicted, "not_tracked", untracked)
	}
	if s.config.MaxSeries > 0 && stats.Series >= s.config.MaxSeries && now.Sub(n.series) >= noticeAgain {
		n.series = now
		s.log.Warn("there are --metrics-max-series series with values of requests: further ones are counted as other", "series", stats.Series)
	}
	n.last = stats
}
