package sluice

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSnapshot_RestoresEveryKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, after := range []int{0, 3} {
			c := c
			c.Hash = Stable
			if after > 0 {
				c.BlockFor, c.BlockAfter = time.Hour, after
			}
			l, clock := newFrozen(t, c)
			c.Clock = clock
			for i := range 100 {
				l.AllowN(fmt.Sprint("key", i), i)
			}
			l.Block("blocked", time.Hour)
			require.NoError(t, l.SetKeyLimit("key7", Per(1000, c.Limit.Period)))
			l.AllowN("key7", 700)
			var b bytes.Buffer
			require.NoError(t, l.Snapshot(&b))
			clock.Advance(sec)
			other := mustNew(t, c)
			require.NoError(t, other.SetKeyLimit("key7", Per(1000, c.Limit.Period)))
			require.NoError(t, other.Restore(bytes.NewReader(b.Bytes())))
			for i := range 100 {
				key := fmt.Sprint("key", i)
				require.Equal(t, l.Peek(key, 1), other.Peek(key, 1), key)
			}
			require.Equal(t, l.Peek("blocked", 1), other.Peek("blocked", 1))
			require.Error(t, other.Restore(bytes.NewReader(b.Bytes())), "it has keys")
			for n := range b.Len() {
				fresh := mustNew(t, c)
				require.ErrorIs(t, fresh.Restore(bytes.NewReader(b.Bytes()[:n])), ErrBadSnapshot)
				if n > 50 {
					break
				}
			}
		}
	})
}
