package redistier

import (
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// owedPause is how long what is owed rests when Redis could not be told.
const owedPause = time.Second

// An owedCharge is what Redis has not been told of a key.
type owedCharge struct {
	plan  *plan
	units int64
}

// takeOwed returns what is owed of a key, which is then no longer. The caller holds mu.
func (l *lane) takeOwed(name string, p *plan) int64 {
	o, ok := l.owed[name]
	if !ok {
		return 0
	}
	delete(l.owed, name)
	return min(o.units, p.burst)
}

// admitted notes that c, of a group that Redis has not answered, or of none, was admitted
// all the same. If Redis cannot have been charged it is owed that; while the group is on
// its way, that is not known.
func (l *lane) admitted(g *group, c *takeCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g != nil && g.batch != nil && !g.back {
		g.admitted += c.n
		return
	}
	if g == nil || g.undone || g.batch == nil {
		l.owe(c.plan, c.key, c.n)
		l.send()
	}
}

// owe notes units that Redis has to be told of, at most a burst of a key. The caller holds
// mu.
func (l *lane) owe(p *plan, name string, units int64) {
	o, known := l.owed[name]
	if known || len(l.owed) < l.tier.maxKeys {
		l.owed[name] = owedCharge{p, min(o.units+units, p.burst)}
	}
}

// postpone lets what is owed rest for a while. The caller holds mu.
func (l *lane) postpone(now time.Time) {
	if now.Before(l.owedFrom) {
		return // and a timer is set
	}
	l.owedFrom = now.Add(owedPause)
	time.AfterFunc(owedPause, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.send()
	})
}

// retire is for a lane that no key goes by any more: nobody would find out that its primary
// answers. It returns what is owed.
func (l *lane) retire() map[string]owedCharge {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.breaker.open {
		l.breaker = breaker{}
		l.tier.turn(-1, nil)
	}
	owed := l.owed
	l.owed = map[string]owedCharge{}
	return owed
}

// inherit takes over what is owed of a key.
func (l *lane) inherit(name string, o owedCharge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owe(o.plan, name, o.units)
	l.send()
}

// notDone reports whether an error says that the script has changed nothing: the server has
// refused it, or has not been reached.
func notDone(err error) bool {
	if err == nil {
		return false
	}
	var refused redis.Error
	var network *net.OpError
	return errors.As(err, &refused) || errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout)
}
