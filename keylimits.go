package sluice

import "github.com/puzpuzpuz/xsync/v3"

// SetLimit gives the key a limit of its own, an override, until ClearLimit: Unlimited or
// DenyAll, say, under which units come back as they did under the key's limit before. Spent units
// stay spent, as with Limiter.SetLimit, which does not change overrides. The override stays until it is
// cleared, even if the key's state is dropped. Keys with an override do not count towards
// MaxKeys and Len, and WorstCase does not include them. Config.Soft is added to the limit. The
// error is a *ConfigError, as of New, and then nothing has changed.
//
// An override takes some 100 bytes a key, and some 1 KiB for each different limit. The time of the call
// does not depend on the number of keys and limits; each open reservation of the key adds some 0.1 us.
// No other tracked key's decision waits for it. Calls for the key that run meanwhile go by either
// limit, also two calls of one goroutine, in any order.
func (k Key) SetLimit(limit Limit) error {
	tm, err := k.lim.made().broughtTerms(limit)
	if err != nil {
		return err
	}
	k.lim.putUnder(k.id, func(kept *terms) (placement, bool) {
		return placement{tm, tm}, kept == nil || kept.limit != limit
	})
	return nil
}

// ClearLimit gives the key the limiter's limit again. Spent units stay spent. It does
// nothing for a key without a limit of its own. The key counts towards MaxKeys again;
// if there is no room for it, its spent units are forgotten, as for any key without
// room. Its time, and its effect on other calls, are as SetLimit says.
func (k Key) ClearLimit() {
	l := k.lim.made()
	if l.shardOf(k.id).cell(k.id).keptOn() != nil {
		l.putUnder(k.id, func(kept *terms) (placement, bool) {
			return placement{nil, l.own.Load()}, kept != nil
		})
	}
}

// WithLimit returns the key with a limit that its calls bring along: a limit that comes with the
// request, say in a token, and does not have to be stored here. Calls through k itself still go by
// the limit that the key has. Both share one state: a call puts the key under the limit that it
// brings, and spent units stay spent. So a client gains nothing by changing between limits, with
// one exception, as with SetLimit: a limit of another period moves the spent units into a
// window that has just begun. A call that changes the limit takes a lock and allocates;
// the next call with the same limit does not.
//
// The key is tracked and forgotten like others: it counts towards MaxKeys, and is dropped when
// it is idle. The limiter remembers up to 4096 such limits, some 1 KiB each. Further limits are
// made anew at each call, which takes some us, and stay as long as a key is under them: with
// as many limits as keys, that is 1 KiB a key. The error is a *ConfigError, as of New: deny a
// request that comes with an invalid limit.
func (k Key) WithLimit(limit Limit) (Key, error) {
	tm, err := k.lim.made().broughtTerms(limit)
	if err != nil {
		return Key{}, err
	}
	return Key{k.lim, k.id, tm}, nil
}

// Limit returns the limit that calls through k go by.
func (k Key) Limit() Limit {
	return k.termsOf(k.lim.made().shardOf(k.id).cell(k.id)).limit // even if another call has brought one
}

// broughtTerms returns the terms of a limit that a key or a call has brought.
func (l *Limiter) broughtTerms(limit Limit) (*terms, error) {
	all := l.brought.Load()
	if all == nil {
		l.brought.CompareAndSwap(nil, xsync.NewMapOf[Limit, *terms]())
		all = l.brought.Load()
	}
	if tm, ok := all.Load(limit); ok {
		return tm, nil
	}
	var from *policy // if nil, the reach is the limit's own
	if limit.constant() {
		from = l.current.Load()
	}
	tm, err := newTerms(l.config.Load(), limit, from)
	if err != nil {
		return nil, err
	}
	if all.Size() >= max(maxBrought, 2*int(l.kept.Load())) { // kept does not count limits that calls bring
		all.Clear() // keys that are under them stay under them
	}
	tm, _ = all.LoadOrStore(limit, tm)
	return tm, nil
}
