package redislimit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A heartbeat finds out how many processes share limits. Each process tells Redis that it is there, and learns how
// many have done so lately. While Redis does not answer, the last number holds.
//
// After Redis has lost its data, or could not be reached for longer than beatLife, whoever beats first finds itself
// alone. Shares of too small a number are too large. So a larger number counts at once, and a smaller one only after
// lessAfter in which every beat was answered and no primary was given up: by then the other processes have beaten, too. Of
// the numbers in this time the largest counts.
type heartbeat struct {
	core *core
	key  string
	name string // of this process
	stop context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex // guards the rest
	less  time.Time  // since when beats have found fewer processes than count; zero while they do not
	found int64      // the most that they have found since
}

const (
	beatPause = time.Second
	// beatLife is how long a process counts after it was last heard of.
	beatLife = 3500 * time.Millisecond
	// lessAfter is how long other processes may take until they have beaten: to dial for 5 s, and to make a pause and a call.
	lessAfter = 2 * beatLife
	// maxReplicas bounds the number from Redis: with more processes, shares and leases would be next to nothing.
	maxReplicas = 10_000
)

func newHeartbeat(c *core, prefix string) *heartbeat {
	var name [16]byte
	_, _ = rand.Read(name[:]) // never fails
	ctx, stop := context.WithCancel(context.Background())
	c.uncounted.Store(true)
	h := &heartbeat{core: c, key: prefix + "~replicas", name: hex.EncodeToString(name[:]), stop: stop}
	h.done.Go(func() { h.beat(ctx) })
	return h
}

// beat tells Redis regularly until ctx ends, and then that the process leaves.
func (h *heartbeat) beat(ctx context.Context) {
	for there := false; ; {
		n, err := h.tell(ctx, false)
		there = err == nil
		h.heard(n, err)
		select {
		case <-time.After(beatPause - mathrand.N(beatPause/8)): // so that replicas do not beat together
		case <-ctx.Done():
			if there {
				_, _ = h.tell(context.Background(), true)
			}
			return
		}
	}
}

// heard notes the finding of a beat, or its error.
func (h *heartbeat) heard(n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	steady := err == nil && h.core.mode() == ModeShared
	h.core.replicas.Store(h.count(time.Now(), h.core.replicas.Load(), n, steady))
	if err == nil {
		h.core.uncounted.Store(false)
	}
}

// count returns the number of processes that count after a beat. known is their number so far, and n what the beat has
// found, or 0. steady reports whether the beat was answered, and every primary is asked. The caller holds mu.
func (h *heartbeat) count(now time.Time, known, n int64, steady bool) int64 {
	n = min(n, maxReplicas)
	switch {
	case n >= known || !steady:
		h.less = time.Time{}
		return max(n, known)
	case h.less.IsZero():
		h.less, h.found = now, n
	}
	h.found = max(h.found, n, 1)
	if now.Sub(h.less) < lessAfter {
		return known
	}
	h.less = time.Time{}
	return h.found
}

// tell makes a call of the script.
func (h *heartbeat) tell(ctx context.Context, leaves bool) (replicas int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, beatPause)
	defer cancel()
	leave := "0"
	if leaves {
		leave = "1"
	}
	args := []any{"evalsha", replicasScript.sha, 1, h.key, h.name, h.core.link.clock() / 1000, beatLife.Milliseconds(), leave}
	cmd := command{redis.NewCmd(ctx, args...)}
	if err = h.core.link.client.Process(ctx, cmd); unknownScript(err) {
		args[0], args[1] = "eval", replicasScript.text
		cmd = command{redis.NewCmd(ctx, args...)}
		err = h.core.link.client.Process(ctx, cmd)
	}
	if err != nil {
		return 0, err
	}
	n, err := cmd.Int64()
	return min(n, math.MaxInt32), err
}

// end makes the process leave. It waits until the client has returned.
func (h *heartbeat) end() {
	if h != nil {
		h.stop()
		h.done.Wait()
	}
}
