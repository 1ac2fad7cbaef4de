package rulestore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// At a stream's end a proxy gives back all hits that it has asked for, even denied ones. Hits that were never
// counted must not be given back. So denied hits are noted in Redis, and subtracted from the next refunds of their keys.
//
// Each denial then takes a call of Redis, so this is done only for domains that are sent refunds. When a process is sent
// one, the other processes hear of it within pollEvery. Until knownAfter has passed, refunds give nothing back, since
// denials before that may not have been noted. So no refund gives back uncounted hits, unless a process has not reached
// Redis for knownAfter, has denied calls from memory, and another process is sent their refunds.

const (
	pollEvery  = time.Second
	knownAfter = 5 * pollEvery
	// denialLife is how long denied hits wait for their refund, from the first denial of a key on.
	denialLife = 24 * time.Hour
	// flagLife is how long a domain stays known after its last refund; flagAgain is how often that time is renewed.
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
	domains map[string]*domain // the domains that have counters
	failing bool               // an error was reported, and nothing has gone well since
	ending  bool
}

// domain is the knowledge about refunds of a domain.
type domain struct {
	name     string
	counters int // guarded by refunds.mutex

	asked   atomic.Bool  // Redis has been asked about it
	known   atomic.Bool  // it is sent refunds
	since   atomic.Int64 // Redis's time in ms of the first refund, 0 if it is not known yet
	settled atomic.Bool  // all processes know it
	told    atomic.Int64 // Unix ns when this process has last told other processes
}

// refunds reports whether the domain is sent refunds, as far as is known. Before Redis has been asked, it may be.
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

// close ends all background work. The function that it returns waits for that end, as far as ctx lets it.
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

// failed reports an error, unless the Store is closed, or an error was reported and nothing has gone well since.
func (r *refunds) failed(err error) {
	r.mutex.Lock()
	tell := err != nil && !r.failing && !r.ending
	r.failing = err != nil
	r.mutex.Unlock()
	if tell && r.report != nil {
		r.report(err)
	}
}

// enter returns the domain of a name for one more counter. The counter leaves the domain when it is closed.
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

// leave forgets a domain that no longer has a counter. If it comes back, Redis is asked about it again.
func (r *refunds) leave(d *domain) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if d.counters--; d.counters == 0 {
		delete(r.domains, d.name)
	}
}

// poll reads from Redis which domains are sent refunds. Without an answer everything stays as it is.
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
		} else { // not listed, or no longer: processes that begin now do not know it
			d.told.Store(0)
		}
		d.since.Store(since)
		d.settled.Store(listed && now.UnixMilli()-since >= knownAfter.Milliseconds())
		d.asked.Store(true)
	}
	return nil
}

// sent notes that the domain is sent a refund, and tells the other processes now and then.
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

// tell tells the other processes that a domain is sent refunds.
func (r *refunds) tell(d *domain) error {
	ctx, cancel := context.WithTimeout(r.running, pollEvery)
	defer cancel()
	at, err := r.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	return errors.Join(r.client.ZAddNX(ctx, r.key, redis.Z{Score: float64(at.UnixMilli()), Member: d.name}).Err(), r.client.Expire(ctx, r.key, flagLife).Err())
}

// absorption is the part of a refund that gives no admitted hits back: absorbed hits were denied and not counted, and
// give nothing back; counted hits were denied and are in the count of the present window.
type absorption struct{ absorbed, counted uint64 }

type absorptions map[*rules.StoreCall]absorption

// absorb looks up the denied hits of the keys of refunds. Refunds of one key at the same time may find the same hits, and
// then give back less than they could.
func (s *Store) absorb(calls []rules.StoreCall) (absorptions, error) {
	var out absorptions
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		if in.Op != rules.GiveBack || in.Hits == 0 || ofBoth(*in) {
			continue
		}
		if out == nil {
			out = absorptions{}
		}
		c := in.Counter.(*counter)
		s.refunds.sent(c.domain)
		if c.inFlight() {
			n, err := c.absorbOne(in)
			if err != nil {
				return nil, err
			}
			out[in] = absorption{absorbed: n}
			continue
		}
		out[in] = absorption{absorbed: in.Hits}
		if c.domain.settled.Load() {
			out[in] = absorption{}
			b.add(c, redislimit.StoreCall{Limit: c.denied, Key: in.Key, Op: redislimit.OpPeek})
			if c.deniedNow != nil {
				b.add(c, redislimit.StoreCall{Limit: c.deniedNow, Key: in.Key, Op: redislimit.OpPeek})
			}
		}
	}
	if err := b.do(s); err != nil {
		return nil, err
	}
	next := 0
	for i := range calls {
		in := &calls[i]
		c, _ := in.Counter.(*counter)
		if a, ok := out[in]; ok && a.absorbed == 0 && !c.inFlight() {
			counted := uint64(0)
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

// inFlight reports whether the limit is of units in flight. All processes always note its denied hits, since refunds are the
// rule.
func (c *counter) inFlight() bool { return c.Algorithm == sluice.InFlight }

// absorbOne takes the hits of a refund off the denied hits of the key, in one step, and returns how many it has taken. If two
// refunds took the same hits, a unit would stay in use until it comes back by itself.
func (c *counter) absorbOne(in *rules.StoreCall) (uint64, error) {
	calls := [2]redislimit.StoreCall{{Limit: c.denied, Key: in.Key, Op: redislimit.OpPeek}, {Limit: c.denied, Key: in.Key, Op: redislimit.OpRefund, Cost: clamp(in.Hits)}}
	var results [len(calls)]redislimit.StoreResult
	if _, err := c.on.DoAll(context.Background(), calls[:], results[:]); err != nil {
		return 0, err
	}
	return min(in.Hits, uint64(max(results[0].Count, 0))), errors.Join(results[0].Err, results[1].Err)
}

// unabsorb notes the denied hits again that absorbOne has taken for calls that have not been made.
func (s *Store) unabsorb(calls []rules.StoreCall, a absorptions) error {
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		if c := in.Counter.(*counter); c.inFlight() && a[in].absorbed > 0 {
			b.add(c, redislimit.StoreCall{Limit: c.denied, Key: in.Key, Op: redislimit.OpDebit, Cost: clamp(a[in].absorbed)})
		}
	}
	return b.do(s)
}

// settle subtracts refunds from the denied hits of their keys.
func (s *Store) settle(calls []rules.StoreCall, a absorptions) error {
	if len(a) == 0 {
		return nil
	}
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		of, c := a[in], in.Counter.(*counter)
		if c.inFlight() || !c.domain.settled.Load() {
			continue
		}
		if n := of.absorbed + of.counted; n > 0 {
			b.add(c, redislimit.StoreCall{Limit: c.denied, Key: in.Key, Op: redislimit.OpRefund, Cost: clamp(n)})
		}
		if of.counted > 0 {
			b.add(c, redislimit.StoreCall{Limit: c.deniedNow, Key: in.Key, Op: redislimit.OpRefund, Cost: clamp(of.counted)})
		}
	}
	return b.do(s)
}

// deny notes the denied hits of keys, in domains that are sent refunds.
func (s *Store) deny(calls []rules.StoreCall) error {
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		in := &calls[i]
		c := in.Counter.(*counter)
		if !c.inFlight() && !ofBoth(*in) && !c.domain.refunds() {
			continue
		}
		b.add(c, redislimit.StoreCall{Limit: c.denied, Key: in.Key, Op: redislimit.OpDebit, Cost: clamp(in.Hits)})
		if in.Counted && c.deniedNow != nil {
			b.add(c, redislimit.StoreCall{Limit: c.deniedNow, Key: in.Key, Op: redislimit.OpDebit, Cost: clamp(in.Hits)})
		}
	}
	return b.do(s)
}
