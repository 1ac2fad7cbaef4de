package redisstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/redistier"
	"github.com/sluice-go/sluice/rules"
)

// A proxy gives back what it has asked for at a stream's end, also where it was denied: units that nothing has
// counted must not be given. So what keys are denied is noted in Redis, and taken off their next refunds.
//
// That is a call of Redis for each denial, which only domains pay for that are sent refunds. A domain is known to be once
// one of its processes is sent one; the others hear of it within pollEvery. Until knownAfter has passed, refunds
// give nothing back: denials may not have been noted until then. So no refund gives what was not counted, unless a process has not
// reached Redis for knownAfter, and has denied, from memory, what another one is sent the refunds of.

const (
	pollEvery  = time.Second
	knownAfter = 5 * pollEvery
	// denialLife is for how long denied hits wait for their refund, from the first of a key on.
	denialLife = 24 * time.Hour
	// flagLife is for how long a domain that is sent no more refunds is known to be; flagAgain is how often that is renewed.
	flagLife  = 7 * 24 * time.Hour
	flagAgain = time.Hour
)

// refunds knows which domains are sent refunds.
type refunds struct {
	client redis.UniversalClient
	key    string // a sorted set of domains, by the time in ms of their first refund
	report func(error)

	running context.Context
	end     context.CancelFunc
	work    sync.WaitGroup

	mutex   sync.Mutex         // guards the rest
	domains map[string]*domain // those that have counters
	failing bool               // reported, and not over
	ending  bool
}

// domain is what is known of a domain.
type domain struct {
	name     string
	counters int // guarded by refunds.mutex

	asked   atomic.Bool  // Redis has been asked about it
	known   atomic.Bool  // it is sent refunds
	since   atomic.Int64 // Redis's time in ms of the first, 0 if that is not known yet
	settled atomic.Bool  // all processes know it
	told    atomic.Int64 // Unix ns when this process has last told the others
}

// refunds reports whether the domain is sent refunds, as far as is known: until Redis has been asked, it may be.
func (d *domain) refunds() bool { return d.known.Load() || !d.asked.Load() }

func newRefunds(client redis.UniversalClient, prefix string, report func(error)) *refunds {
	r := &refunds{client: client, key: prefix + ":refunds", report: report, domains: map[string]*domain{}}
	r.running, r.end = context.WithCancel(context.Background())
	r.work.Go(func() {
		ticker := time.NewTicker(pollEvery)
		defer ticker.Stop()
		for {
			r.failed(r.poll())
			select {
			case <-r.running.Done():
				return
			case <-ticker.C:
			}
		}
	})
	return r
}

// close ends all that is under way. The function that it returns waits for that, as far as ctx lets it.
func (r *refunds) close() (wait func(ctx context.Context)) {
	r.mutex.Lock()
	r.ending = true
	r.mutex.Unlock()
	r.end()
	ended := make(chan struct{})
	go func() {
		r.work.Wait()
		close(ended)
	}()
	return func(ctx context.Context) {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
}

// failed reports an error, unless it is the end, or was reported already and nothing has gone well since.
func (r *refunds) failed(err error) {
	r.mutex.Lock()
	tell := err != nil && !r.failing && !r.ending
	r.failing = err != nil
	r.mutex.Unlock()
	if tell && r.report != nil {
		r.report(err)
	}
}

// enter returns the domain of a name, for one more counter, which leaves it in the end.
func (r *refunds) enter(name string) *domain {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	d := r.domains[name]
	if d == nil {
		d = &domain{name: name}
		r.domains[name] = d
	}
	d.counters++
	return d
}

// leave forgets a domain that has no counter any more. If it comes back Redis is asked about it again.
func (r *refunds) leave(d *domain) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if d.counters--; d.counters == 0 {
		delete(r.domains, d.name)
	}
}

// poll learns what others know. Without an answer everything stays as it is.
func (r *refunds) poll() error {
	ctx, cancel := context.WithTimeout(r.running, pollEvery)
	defer cancel()
	r.mutex.Lock()
	before := slices.Collect(maps.Values(r.domains))
	r.mutex.Unlock()
	now, err := r.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	list, err := r.client.ZRangeWithScores(ctx, r.key, 0, -1).Result()
	if err != nil {
		return err
	}
	first := make(map[string]int64, len(list))
	for _, z := range list {
		name, _ := z.Member.(string)
		first[name] = int64(z.Score)
	}
	for _, d := range before {
		since, listed := first[d.name]
		if listed {
			d.known.Store(true)
		} else { // or no longer: those who begin now do not know it
			d.told.Store(0)
		}
		d.since.Store(since)
		d.settled.Store(listed && now.UnixMilli()-since >= knownAfter.Milliseconds())
		d.asked.Store(true)
	}
	return nil
}

// sent notes that the domain is sent a refund, and tells the others now and then.
func (r *refunds) sent(d *domain) {
	d.known.Store(true)
	now, told := time.Now().UnixNano(), d.told.Load()
	if now-told < int64(flagAgain) && d.since.Load() != 0 || now-told < int64(pollEvery) || !d.told.CompareAndSwap(told, now) {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !r.ending {
		r.work.Go(func() { r.failed(r.tell(d)) })
	}
}

// tell tells the others that a domain is sent refunds.
func (r *refunds) tell(d *domain) error {
	ctx, cancel := context.WithTimeout(r.running, pollEvery)
	defer cancel()
	at, err := r.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	return errors.Join(r.client.ZAddNX(ctx, r.key, redis.Z{Score: float64(at.UnixMilli()), Member: d.name}).Err(), r.client.Expire(ctx, r.key, flagLife).Err())
}

// absorption is what becomes of a refund: absorbed hits were denied and not counted, and give nothing back;
// counted ones were denied and are in the count of the present window.
type absorption struct{ absorbed, counted uint64 }

type absorptions map[*rules.StoreCall]absorption

// absorb looks up what the keys of refunds were denied. Refunds of one key at the same time may find the same hits, and
// then give less back than they could.
func (s *Store) absorb(calls []rules.StoreCall) (absorptions, error) {
	var out absorptions
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		if in.Op != rules.GiveBack || in.Hits == 0 {
			continue
		}
		if out == nil {
			out = absorptions{}
		}
		c := in.Counter.(*counter)
		s.refunds.sent(c.domain)
		out[in] = absorption{absorbed: in.Hits}
		if c.domain.settled.Load() {
			out[in] = absorption{}
			b.add(c, redistier.StoreCall{Limit: c.denied, Key: in.Key, Op: redistier.OpPeek})
			if c.deniedNow != nil {
				b.add(c, redistier.StoreCall{Limit: c.deniedNow, Key: in.Key, Op: redistier.OpPeek})
			}
		}
	}
	if err := b.do(s); err != nil {
		return nil, err
	}
	next := 0
	for i := range calls {
		in := &calls[i]
		if a, ok := out[in]; ok && a.absorbed == 0 {
			c, counted := in.Counter.(*counter), uint64(0)
			all := uint64(max(b.results[next].Count, 0))
			next++
			if c.deniedNow != nil {
				counted = uint64(max(b.results[next].Count, 0))
				next++
			}
			a.absorbed = min(in.Hits, all-min(all, counted))
			a.counted = min(counted, in.Hits-a.absorbed)
			out[in] = a
		}
	}
	return out, nil
}

// settle takes refunds off what their keys were denied.
func (s *Store) settle(calls []rules.StoreCall, a absorptions) error {
	if len(a) == 0 {
		return nil
	}
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		of, c := a[in], in.Counter.(*counter)
		if !c.domain.settled.Load() {
			continue
		}
		if n := of.absorbed + of.counted; n > 0 {
			b.add(c, redistier.StoreCall{Limit: c.denied, Key: in.Key, Op: redistier.OpRefund, Cost: clamp(n)})
		}
		if of.counted > 0 {
			b.add(c, redistier.StoreCall{Limit: c.deniedNow, Key: in.Key, Op: redistier.OpRefund, Cost: clamp(of.counted)})
		}
	}
	return b.do(s)
}

// deny notes what keys were denied, in domains that are sent refunds.
func (s *Store) deny(calls []rules.StoreCall) error {
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		c := in.Counter.(*counter)
		if !c.domain.refunds() {
			continue
		}
		b.add(c, redistier.StoreCall{Limit: c.denied, Key: in.Key, Op: redistier.OpCharge, Cost: clamp(in.Hits)})
		if in.Counted && c.deniedNow != nil {
			b.add(c, redistier.StoreCall{Limit: c.deniedNow, Key: in.Key, Op: redistier.OpCharge, Cost: clamp(in.Hits)})
		}
	}
	return b.do(s)
}
