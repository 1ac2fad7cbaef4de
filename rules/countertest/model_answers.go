package countertest

import (
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
)

// left is the time to the end of a window, in whole seconds.
func (m *model) left(c *counter) time.Duration {
	return roundUp(m.until(c))
}

func roundUp(d time.Duration) time.Duration {
	if d == sluice.Never {
		return d
	}
	return (d + time.Second - 1).Truncate(time.Second)
}

// answerWindow fills in how a window stands. counted says whether the hits are in its count.
func (m *model) answerWindow(it *item, counted bool) {
	count := m.windows[it.id]
	it.times = times{0, m.left(&it.counter)}
	s := m.stat(it.path)
	s[total] += it.hits
	if !it.over {
		it.remaining = max(0, it.limit-count)
		s[within] += it.hits
		return
	}
	it.remaining = 0
	it.times.retry = m.until(&it.counter)
	if it.limit == 0 || it.hits > it.limit {
		it.times.retry = sluice.Never
	}
	above := it.hits
	if counted {
		above = min(it.hits, count-it.limit)
	}
	s[over] += above
	if it.shadow {
		s[shadow] += above
	}
}

// answerLimiter fills in how another count stands after a decision.
func (m *model) answerLimiter(it *item, d oracle.Decision) {
	it.remaining = d.Remaining
	it.times = times{0, roundUp(time.Duration(d.ResetAfter))}
	s := m.stat(it.path)
	s[total] += it.hits
	if !it.over {
		s[within] += it.hits
		return
	}
	it.times.retry = time.Duration(d.RetryAfter)
	if it.inFlight && it.times.retry != sluice.Never { // a call may end at any time
		it.times.retry = min(it.times.retry, time.Second)
		it.times.reset = min(it.times.reset, roundUp(it.times.retry))
	}
	s[over] += it.hits
	if it.shadow {
		s[shadow] += it.hits
	}
}

// answerStopped fills in how a count stands, other than a window, that has not been charged: over, as judged, or what the hits would
// leave.
func (m *model) answerStopped(it *item) {
	d := m.look(&it.counter, it.hits)
	if it.over {
		asked := max(it.asked, it.hits)
		d = m.look(&it.counter, 0)
		d.RetryAfter = m.look(&it.counter, asked).RetryAfter
		m.answerLimiter(it, d)
		if asked > it.hits {
			it.times.reset = -1
			if it.times.retry != sluice.Never { // until all fit, or until the key is fresh
				it.times.retry = -1
			}
		}
		return
	}
	m.answerLimiter(it, d)
}

// answerBoth fills in how two budgets stand. stopped says that nothing was charged.
func (m *model) answerBoth(it *item, stopped bool) {
	it.remaining = m.room(&it.counter) + m.room(it.second)
	it.times = times{0, -1}
	s := m.stat(it.path)
	switch {
	case it.over:
		it.times.retry = -1
		fresh := m.room(&it.counter) == it.limit && m.room(it.second) == it.second.limit
		if fresh || it.hits > it.limit+it.second.limit { // fresh budgets lack room beside other hits of the call
			it.times.retry = sluice.Never
		}
		s[total] += it.hits
		s[over] += it.hits
	case stopped:
		s[total] += it.hits
		s[within] += it.hits
	default:
		s[total] += it.own
		s[within] += it.own
		more := m.stat(it.second.path)
		more[total] += it.hits - it.own
		more[within] += it.hits - it.own
	}
	if stopped {
		m.deny(it, 0, it.hits)
	}
}

func (m *model) stat(path string) *numbers {
	if m.stats[path] == nil {
		m.stats[path] = &numbers{}
	}
	return m.stats[path]
}

// forgetStats forgets the statistics of rules that there are no longer.
func (m *model) forgetStats() {
	for path := range m.stats {
		kept := strings.HasSuffix(path, "/override")
		for i := range m.set {
			kept = kept || strings.HasSuffix(path, "/"+m.set[i].path())
		}
		if !kept {
			delete(m.stats, path)
		}
	}
}

func (m *model) seriesOf(rule string) string {
	if !strings.Contains(rule, "/") {
		rule = "d/" + rule
	}
	return m.stat(rule).String()
}

// answer combines the statuses. marks are the marks of a hold.
func (m *model) answer(items []*item, marks string) (out outcome) {
	quotas, quotasOver, denied := 0, 0, false
	text := ""
	for _, it := range items {
		over := it.over && !it.shadow
		if it.quota && it.limited {
			quotas++
			if over {
				quotasOver++
			}
		} else {
			denied = denied || over
		}
		text += " " + statusText(it.limited, over, it.over, it.times.retry == sluice.Never, it.remaining)
		out.times = append(out.times, it.times)
	}
	code := "OK"
	switch denied = denied || quotas > 0 && quotas == quotasOver; {
	case denied && m.script.shadow:
		marks += " would"
	case denied:
		code = "OVER_LIMIT"
	}
	out.text = code + marks + text
	return out
}
