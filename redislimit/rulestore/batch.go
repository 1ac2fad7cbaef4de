package rulestore

import (
	"context"
	"errors"
	"sync"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// batch is the calls of a Decide, in redislimit's form.
type batch struct {
	calls   []redislimit.StoreCall
	results []redislimit.StoreResult
	on      []*redislimit.Store // the store of each call
	from    []int               // the first call of each of the engine's, of DecideAll
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// free lets another Decide use b.
func (b *batch) free() {
	clear(b.calls)
	clear(b.results)
	b.calls, b.results, b.on, b.from = b.calls[:0], b.results[:0], b.on[:0], b.from[:0]
	batches.Put(b)
}

func (b *batch) add(c *counter, call redislimit.StoreCall) {
	b.calls = append(b.calls, call)
	b.results = append(b.results, redislimit.StoreResult{})
	b.on = append(b.on, c.on)
}

// do makes the calls, one server after the other, and returns the errors.
func (b *batch) do(s *Store) error {
	if len(b.calls) == 0 {
		return nil
	}
	var err error
	if s.perSecond == nil {
		err = s.main.Do(context.Background(), b.calls, b.results)
	} else {
		err = b.doParts(s)
	}
	for i := range b.results {
		err = errors.Join(err, b.results[i].Err)
	}
	return err
}

// doAll makes all calls or none, and returns the first error.
func (b *batch) doAll(on *redislimit.Store) (sluice.AllDecision, error) {
	all, err := on.DoAll(context.Background(), b.calls, b.results)
	for i := 0; err == nil && i < len(b.results); i++ {
		err = b.results[i].Err
	}
	return all, err
}

// doParts makes the calls of each server together.
func (b *batch) doParts(s *Store) error {
	for _, on := range s.Stores() {
		var part batch
		var at []int
		for i := range b.calls {
			if b.on[i] == on {
				part.calls = append(part.calls, b.calls[i])
				at = append(at, i)
			}
		}
		if len(at) == 0 {
			continue
		}
		part.results = make([]redislimit.StoreResult, len(at))
		if err := on.Do(context.Background(), part.calls, part.results); err != nil {
			return err
		}
		for j, i := range at {
			b.results[i] = part.results[j]
		}
	}
	return nil
}

// addOf adds the call for one of the engine's, or the calls if it is of two budgets.
func (b *batch) addOf(in *rules.StoreCall, call func(*counter) redislimit.StoreCall) {
	if b.from = append(b.from, len(b.calls)); ofBoth(*in) {
		b.addBoth(in)
		return
	}
	c := in.Counter.(*counter)
	b.add(c, call(c))
}

// answer fills in the results of the engine's calls, and returns the one that has denied all, or -1.
func (b *batch) answer(calls []rules.StoreCall, all sluice.AllDecision) (denied int) {
	denied = -1
	for i := range calls {
		from, to := b.from[i], len(b.calls)
		if i+1 < len(calls) {
			to = b.from[i+1]
		}
		if from <= all.Denied && all.Denied < to {
			denied = i
		}
		if ofBoth(calls[i]) {
			answerBoth(&calls[i], b.results[from:to], all.Allowed)
		} else {
			calls[i].Counter.(*counter).answer(&calls[i], &b.calls[from], &b.results[from])
		}
	}
	return denied
}
