package sluice

// lookUp finds the key, and the terms that a call through k goes by. If neither k nor a cell
// has terms, the call goes by the terms of the table.
func (k Key) lookUp() (at spot, tm *terms) {
	at = k.lim.locate(k.id)
	if k.terms == nil && at.cell == nil {
		return at, at.policy.of
	}
	return at, k.termsOf(at.cell)
}

// termsOf returns the terms that a call through k, whose cell is c or nil, goes by.
func (k Key) termsOf(c *cell) *terms {
	switch kept := c.keptOn(); {
	case k.terms != nil:
		return k.terms
	case kept != nil:
		return kept
	case c != nil && c.policy.of == k.lim.current.Load().of:
		return c.policy.of // while SetLimit runs, until it has moved the cell, as with a table
	}
	return k.lim.own.Load()
}

// policyFor returns the policy that a call through k goes by. With put, it puts a key that is tracked under another
// policy under this one. Without put, it returns the policy that the key is under if it is tracked.
func (k Key) policyFor(put bool) *policy {
	if k.terms == nil && k.lim.shardOf(k.id).cell(k.id) == nil {
		return k.lim.tableOf(k.id).policy // as for nearly all keys, in half the time
	}
	for {
		at, tm := k.lookUp()
		switch {
		case at.policy.of == tm:
			return at.policy
		case at.nowhere():
			return tm.variantFor(at.policy, state{}, 0)
		case !put:
			return at.policy
		}
		k.lim.putUnder(k.id, func(kept *terms) (placement, bool) {
			at, tm := k.lookUp() // again: the limit may have changed since the first lookUp
			return placement{kept, tm}, at.policy.of != tm && !at.nowhere()
		})
	}
}

// act replaces the key's word by the result of f, under the policy that policyFor finds for a
// call through k. It starts over if the key has another policy by then, so f may be called
// several times, under several policies: the last call counts. If the key is not tracked,
// act calls absent in place of f, and starts over unless absent returns done.
func (k Key) act(put bool, f func(p *policy, key state) uint64, absent func(p *policy) (done bool)) {
	for {
		p := k.policyFor(put)
		if tracked, same := k.lim.updateUnder(p, k.id, f); same && (tracked || absent(p)) {
			return
		}
	}
}
