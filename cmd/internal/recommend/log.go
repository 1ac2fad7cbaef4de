// Package recommend finds, for the requests of a log, the smallest limits that deny a goal of the clients nothing.
//
// Whether a limit denies a client anything is decided by the client's requests up to the first denial, and until then all have been
// admitted. So the need of a client, the smallest limit that denies it nothing, follows from its requests alone, and a limit denies
// exactly the clients that need more. That takes a few words a client, in one pass for as many limits as one likes.
package recommend

import (
	"fmt"

	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/spool"
)

// A Log is the requests of one log, read once and kept for as many passes as are needed. Its memory grows with the number of clients
// only, which is bounded; the requests are in a Spool.
type Log struct {
	Clients *replay.Clients
	Clock   replay.Clock

	spool      spool.Spool
	maxClients int
}

// TooManyClients is the error of a log with more clients than there may be.
type TooManyClients int

func (e TooManyClients) Error() string {
	return fmt.Sprintf("the log has more than %d clients: want --max-clients above that, at about 400 bytes of memory a client, or a shorter --ipv6-prefix",
		int(e))
}

// NewLog returns a log without requests, of clients that are none yet.
func NewLog(clients *replay.Clients, maxClients int) *Log {
	return &Log{Clients: clients, maxClients: maxClients}
}

// Add adds a request of a client that the log spells so, at a time in nanoseconds since 1970 that is not negative. After an
// error the log is of no use. It does not retain client.
func (l *Log) Add(client []byte, at int64) error {
	id := l.Clients.ID(client)
	if l.Clients.Len() > l.maxClients {
		return TooManyClients(l.maxClients)
	}
	return l.spool.Add(id, l.Clock.Advance(at))
}

// Close gives up the requests.
func (l *Log) Close() error { return l.spool.Close() }

// Replay decides the requests under rules, and sums up with the top clients of each.
func (l *Log) Replay(rules []replay.Rule, top int, sparklines bool) (replay.Result, error) {
	return l.replay(rules, nil, top, sparklines)
}

// replay is Replay. denied, if not nil, has for each rule the clients that it denies anything: all requests of other clients are allowed.
func (l *Log) replay(rules []replay.Rule, denied [][]bool, top int, sparklines bool) (replay.Result, error) {
	engine, err := replay.New(rules, l.Clients)
	if err != nil {
		return replay.Result{}, err
	}
	for i := range denied {
		engine.AllowOthers(i, denied[i])
	}
	if sparklines {
		engine.Sparklines()
	}
	r, buf := l.spool.Read(), make([]spool.Request, batch)
	for requests := r.Batch(buf); len(requests) > 0; requests = r.Batch(buf) {
		for _, q := range requests {
			engine.Decide(q.Client, q.Now, nil)
		}
	}
	res := engine.Result(top)
	res.First, res.Late, res.MaxLate = l.Clock.First, l.Clock.Late, l.Clock.MaxLate
	return res, r.Err()
}
