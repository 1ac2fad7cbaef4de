package redislimit

import (
	"reflect"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// limiters holds the limiters of this process that are still in use, by Prefix and shape. Two limiters of one client
// with different limits would charge each other for the units of their callers.
var limiters = struct {
	sync.Mutex
	by map[string][]weak.Pointer[Limiter]
}{by: map[string][]weak.Pointer[Limiter]{}}

// register notes a new limiter, unless its Prefix is in use for another limit.
func (l *Limiter) register() error {
	p := l.plan.Load()
	name := name(l.prefix, p.shape.letter(), "")
	limiters.Lock()
	defer limiters.Unlock()
	other := l.rival(name)
	if other != nil { // perhaps it is no longer in use
		other = nil
		runtime.GC()
		other = l.rival(name)
	}
	if other != nil {
		return configErrorf("Prefix", "%q is that of another limiter of this client, of %v, and this one is of %v: they would count each other's units; want a Prefix for each limit, or SetLimit to change it",
			l.prefix, other.Limit(), p.limit)
	}
	limiters.by[name] = append(limiters.by[name], weak.Make(l))
	runtime.AddCleanup(l, forgetLimiters, name)
	return nil
}

// rival returns a limiter that keeps another limit under the same names, or nil. The caller holds the lock of limiters.
func (l *Limiter) rival(name string) *Limiter {
	p := l.plan.Load()
	for _, w := range limiters.by[name] {
		other := w.Value()
		if other == nil || !reflect.ValueOf(l.client).Comparable() || other.client != l.client {
			continue
		}
		if o := other.plan.Load(); !sameShape(o.shape, p.shape) || o.burst != p.burst || o.block != p.block {
			return other
		}
	}
	return nil
}

// forgetLimiters drops the limiters of a name that are gone.
func forgetLimiters(name string) {
	limiters.Lock()
	defer limiters.Unlock()
	left := slices.DeleteFunc(limiters.by[name], func(w weak.Pointer[Limiter]) bool { return w.Value() == nil })
	if len(left) == 0 {
		delete(limiters.by, name)
		return
	}
	limiters.by[name] = left
}
