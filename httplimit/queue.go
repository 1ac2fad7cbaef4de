package httplimit

import (
	"time"

	"github.com/sluice-go/sluice/internal/policies"
	"github.com/sluice-go/sluice/metrics"
)

// QueueConfig describes a Queue. All fields are required.
type QueueConfig struct {
	// MaxWaiting is how many requests wait at once, over all keys.
	MaxWaiting int

	// MaxPerKey is how many of them may have one key of a policy, 1 to MaxWaiting. Policy.MaxPerKey has another number for
	// one policy: up to MaxWaiting, for a key that all clients share.
	MaxPerKey int

	// MaxWait is how long a request waits at most, up to an hour.
	MaxWait time.Duration
}

// A Queue has requests that the Limiters of policies would deny wait for their turn in place of being denied, as nginx's burst
// without nodelay does. It is safe for concurrent use, can serve several middlewares, of grpclimit too, and must be made by NewQueue.
//
// Requests with the same keys pass in the order in which they came, under every algorithm. One that waits for another key than
// they do keeps none of them back. A request that finds room, and nobody in front, does not wait, and needs no place. Nothing
// is charged for one that waits: when its client goes, its place is free at once, and those behind it move up.
//
// A request is turned away, and so denied, if there is no place for it, if it would have to wait for longer than MaxWait or the
// deadline of its context, and if it has waited for as long. Its RetryAfter has those who wait in front in it, as far as is
// known: exactly for buckets and fixed windows, if they all stay; for sliding windows it can be longer; of requests in flight nobody
// knows.
//
// While it waits, a request takes its goroutine, its connection and about a kilobyte, besides its keys. It has a place at each of its
// keys, so that nobody has more than MaxPerKey places by one key, of any policy. Whoever has many keys can take all
// places; requests that are within the limits pass all the same.
//
// Waits are in real time, and go by the Clock of the Limiters. Who asks a Limiter without the Queue does not wait in it, and
// can be admitted first. No request waits for a Remote, or for a policy in shadow mode: a Remote is asked when
// the turn has come, and denies at once. A Limiter with BlockFor or CountDenied, which do something to whoever is denied, is refused,
// but of a policy with CountsDenialsOf, which counts who is turned away.
//
// net/http notices that a client of HTTP/1 has gone only if the request has no body, or that has been read: another one keeps its
// place for up to MaxWait. HTTP/2 tells at once; fasthttp, and so fiber, never does. http.Server.Shutdown waits for those who wait.
type Queue policies.Queue

// NewQueue returns a Queue in which nobody waits. The error is a *ConfigError.
func NewQueue(c QueueConfig) (*Queue, error) {
	t := policies.QueueTerms(c)
	if field, reason := t.Check(); reason != "" {
		return nil, &ConfigError{"QueueConfig." + field, reason}
	}
	return (*Queue)(policies.NewQueue(t)), nil
}

// Metrics returns what the Queue counts, for promsluice, otelsluice or another translator, under a name that is the label
// "queue".
//
//	sluice.queue.waiting  requests that wait now
//	sluice.queue.calls    requests over a limit by outcome: passed after a wait; turned_away, and so denied; and gone, whose
//	                      clients have gone while they waited
//
// A Limiter counts a request that passes after a wait as admitted, one that is turned away as denied, and one that is gone not at all. If
// another request takes the room between its look and its charge, it counts as denied once more.
func (q *Queue) Metrics(name string) metrics.Set { return (*policies.Queue)(q).Metrics(name) }
