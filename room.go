package sluice

import (
	"context"

	"github.com/sluice-go/sluice/internal/room"
)

func init() {
	room.Await = func(ctx context.Context, key any, cost int) error { return key.(Key).awaitRoom(ctx, cost) }
	room.Deny = func(key any, cost int) {
		k := key.(Key)
		k.lim.refuse(k.id, "", cost)
	}
}

// awaitRoom is room.Await. Other calls may take the units before the caller does.
func (k Key) awaitRoom(ctx context.Context, cost int) error {
	l := k.lim.made()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		woken, stop := ctx, func() {}
		if l.holds() { // and then it has to look: see awaiting
			woken, stop = l.awaiting.listen(ctx, k.id)
		}
		now := max(l.now(), 0)
		d := k.PeekAt(now, cost)
		if d.Allowed || d.RetryAfter == Never {
			stop()
			return nil
		}
		err := l.nap(ctx, woken, after(now, d.RetryAfter))
		stop()
		if err != nil {
			return err
		}
	}
}
