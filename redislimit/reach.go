package redislimit

import (
	"cmp"
	"context"
	"strconv"
	"time"
)

// Reach asks Redis before there are calls, so that the first calls find connections, the number of replicas, and the
// scripts of all limits that have been added. It asks each primary once with each script, and writes nothing but the entry
// that counts this process. It returns nil if the number is known, and a primary has answered; other primaries may be down.
// Otherwise it returns the client's error or the error of Redis, and can be called again. Calls need not
// wait for it. It is safe for concurrent use.
func (s *Store) Reach(ctx context.Context) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	if s.beats != nil {
		n, err := s.beats.tell(ctx, false)
		s.beats.heard(n, err)
		if err != nil {
			return err
		}
	}
	if err := s.router.reach(ctx); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	for _, l := range s.router.all() {
		l.connect()
	}
	return nil
}

// look makes the calls of looks. It returns nil if a primary has answered all of its calls.
func (s *Store) look(ctx context.Context) (err error) {
	outcomes, primaries := make(chan error), 0
	for _, looks := range s.looks() {
		primaries++
		go func() { outcomes <- s.lookAt(ctx, looks) }()
	}
	if primaries == 0 { // there are no limits yet
		return s.link.client.Eval(ctx, "return 1", nil).Err() // as users who may run scripts may do
	}
	answered := false
	for range primaries {
		one := <-outcomes
		answered = answered || one == nil
		err = cmp.Or(err, one)
	}
	if answered {
		return nil
	}
	return err
}

// lookAt makes calls that are for one primary, as many times at once as pipelines go out at once, so that each has its connection.
func (s *Store) lookAt(ctx context.Context, looks []request) (err error) {
	outcomes := make(chan error, maxSenders)
	for range maxSenders {
		go func() {
			for _, r := range looks {
				if r.all != nil {
					r.all = &allCall{calls: r.all.calls} // it is packed for each call
				}
				if _, err := s.link.run(ctx, r); !answers(err) {
					outcomes <- err
					return
				}
			}
			outcomes <- nil
		}()
	}
	for range maxSenders {
		err = cmp.Or(err, <-outcomes)
	}
	return err
}

// maxTries is how many keys looks tries, to find one for each primary.
const maxTries = 20_000

// looks returns calls that charge nothing: for each primary, one with each script that calls for the limits use.
func (s *Store) looks() map[*lane][]request {
	type sent struct {
		lane   *lane
		script *script
	}
	now, primaries := time.Now(), s.router.width()
	looks, known := map[*lane][]request{}, map[sent]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.names {
		l := n.first
		p := l.plan.Load()
		if p.constant() {
			continue
		}
		lanes := map[*lane]bool{}
		for i := 0; i < maxTries && len(lanes) < primaries; i++ {
			t := l.newCall(p, strconv.Itoa(i), 0, OpPeek)
			t.terms = nil
			to := s.router.lane(t.key, now)
			lanes[to] = true
			all := &allCall{calls: []takeCall{t}}
			if at := (sent{to, p.script()}); !known[at] {
				known[at] = true
				looks[to] = append(looks[to], t.request)
			}
			if at := (sent{to, all.script()}); !known[at] {
				known[at] = true
				looks[to] = append(looks[to], request{plan: p, key: t.key, op: opAll, n: 1, all: all})
			}
			if l.keys.tagged { // all its keys are in this primary
				break
			}
		}
	}
	return looks
}

// reach asks for the slots of a cluster, and waits for the answer.
func (r *router) reach(ctx context.Context) error {
	if r.cluster == nil {
		return nil
	}
	for !r.asking.CompareAndSwap(false, true) { // lane does so
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	defer r.asking.Store(false)
	r.asked.Store(time.Now().UnixNano())
	return r.ask(ctx)
}

// width returns how many primaries there are, as far as is known.
func (r *router) width() int {
	if r.ring != nil {
		return r.ring.Len()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(len(r.lanes), 1)
}

// connect dials the connection of callers that lead, if they can, and waits for that.
func (l *lane) connect() {
	l.mu.Lock()
	dials := l.client != nil && !l.client.alone.Load() && l.direct == nil && !l.dialling && !l.closed
	if dials {
		l.dialling, l.dialFrom = true, time.Now().Add(dialPause)
		l.done.Add(1)
	}
	l.mu.Unlock()
	if dials {
		defer l.done.Done()
		l.dial()
	}
}
