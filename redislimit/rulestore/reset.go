package rulestore

import (
	"context"

	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// Reset implements rules.ResetStore. Units that are on lease to other processes stay with them until they are spent.
func (s *Store) Reset(calls []rules.StoreCall) error {
	for i := range calls {
		in := &calls[i]
		c := in.Counter.(*counter)
		keys := map[*redislimit.StoreLimit]string{c.limit: in.Key, c.deniedNow: in.Key}
		if ofBoth(*in) {
			second := in.Second.Counter.(*counter)
			keys[second.limit], keys[second.spilled] = in.Second.Key, in.Key+in.Second.Key
		}
		for limit, key := range keys {
			if limit == nil {
				continue
			}
			if err := c.on.Reset(context.Background(), limit, key); err != nil {
				return plain(err)
			}
		}
	}
	return nil
}
