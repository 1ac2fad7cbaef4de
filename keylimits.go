package sluice

import "github.com/puzpuzpuz/xsync/v3"

// SetKeyLimit gives key a limit of its own, until ClearKeyLimit: Unlimited or
// DenyAll, say, under which units come back as they did under the key's limit before. Like
// SetLimit, which does not touch it, it keeps what the key has spent. The limit is kept
// until it is cleared, whatever becomes of the key's state; such keys do not count towards
// MaxKeys and Len, and WorstCase does not speak of them. Config.Soft is added to it. The
// error is a *ConfigError, as of New, and then nothing has changed.
//
// It takes some 100 bytes a key, some 1 KiB for each different limit, and a time that does not
// depend on how many keys and limits there are, though it does on how many reservations of the
// key are open, some 0.1 us each; no other tracked key's decision waits for it. Calls for the key that run meanwhile go by either limit, also two of one goroutine, in
// any order.
func (l *Limiter) SetKeyLimit(key string, limit Limit) error {
	return l.setKeyLimit(l.made().hash.String(key), limit)
}

// ClearKeyLimit gives key the limiter's limit again. It keeps what the key has spent, and
// does nothing for a key without a limit of its own. The key counts towards MaxKeys again;
// if there is no room for it, what it has spent is forgotten, as for any key that has no
// room. The time that it takes, and what it means for other calls, are as SetKeyLimit says.
func (l *Limiter) ClearKeyLimit(key string) { l.clearKeyLimit(l.made().hash.String(key)) }

// SetLimit is Limiter.SetKeyLimit for this key.
func (k Key) SetLimit(limit Limit) error { return k.lim.made().setKeyLimit(k.id, limit) }

// ClearLimit is Limiter.ClearKeyLimit for this key.
func (k Key) ClearLimit() { k.lim.made().clearKeyLimit(k.id) }

// WithLimit returns the key with a limit that its calls bring along: one that comes with the
// request, say in a token, and that nobody has to keep. Calls through k itself go on going by
// the limit that the key has. The state is one: a call puts the key under the limit it
// brings, and the key keeps what it has spent. So nobody gains by changing between limits, with
// one exception, which SetLimit has too: a limit of another period moves what has been spent into
// a window that has just begun. A call that changes the limit takes a lock and allocates;
// the next one with the same limit does not.
//
// The key is tracked and forgotten like others: it counts towards MaxKeys, and goes when it
// is idle. The limiter remembers up to 4096 such limits, some 1 KiB each. More than that are
// made anew at each call, which takes some us, and stay as long as a key is under them: with
// as many limits as keys, that is 1 KiB a key. The error is a *ConfigError, as of New: deny a
// request whose limit is none.
func (k Key) WithLimit(limit Limit) (Key, error) {
	tm, err := k.lim.made().broughtTerms(limit)
	if err != nil {
		return Key{}, err
	}
	return Key{k.lim, k.id, tm}, nil
}

// Limit returns the limit that calls through k go by.
func (k Key) Limit() Limit {
	return k.termsOf(k.lim.made().shardOf(k.id).cell(k.id)).limit // whatever another call has brought
}

func (l *Limiter) setKeyLimit(id uint64, limit Limit) error {
	tm, err := l.broughtTerms(limit)
	if err != nil {
		return err
	}
	l.putUnder(id, func(kept *terms) (placement, bool) {
		return placement{tm, tm}, kept == nil || kept.limit != limit
	})
	return nil
}

func (l *Limiter) clearKeyLimit(id uint64) {
	if l.shardOf(id).cell(id).keptOn() != nil {
		l.putUnder(id, func(kept *terms) (placement, bool) {
			return placement{nil, l.own.Load()}, kept != nil
		})
	}
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
	var from *policy // without one, no more reach than the limit's own
	if limit.constant() {
		from = l.current.Load()
	}
	tm, err := newTerms(l.config.Load(), limit, from)
	if err != nil {
		return nil, err
	}
	if all.Size() >= max(maxBrought, 2*int(l.kept.Load())) { // those of calls are not counted
		all.Clear() // keys that are under them stay under them
	}
	tm, _ = all.LoadOrStore(limit, tm)
	return tm, nil
}
