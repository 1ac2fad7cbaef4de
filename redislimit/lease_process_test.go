package redislimit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// replicaEnv tells the test binary to be a replica, in a process of its own, instead: the
// server's address, the prefix, and the role, with blanks in between.
const replicaEnv = "SLUICE_REDIS_REPLICA"

// crowdLimit is that of the replicas of TestLease_Processes, leftLimit that of
// TestLease_Killed.
var (
	crowdLimit = sluice.PerSecond(2000).WithBurst(500)
	leftLimit  = sluice.PerSecond(10).WithBurst(1000)
)

// beReplica is the main function of a replica.
func beReplica(what string) error {
	var addr, prefix, role string
	if _, err := fmt.Sscan(what, &addr, &prefix, &role); err != nil {
		return err
	}
	if role == "holder" {
		return beHolder(addr, prefix)
	}
	var client redis.UniversalClient = redis.NewClient(&redis.Options{Addr: addr})
	if role == "leaders" {
		var err error
		if client, err = NewClient(&redis.Options{Addr: addr}); err != nil {
			return err
		}
	}
	defer client.Close()
	limit, life := crowdLimit, 200*time.Millisecond
	if role == "left" {
		limit = leftLimit
	}
	l, err := New(client, Config{Limit: limit, Prefix: prefix})
	if err != nil {
		return err
	}
	// A call that is late is an error, and not answered from a share.
	t, err := NewTier(l, TierConfig{Replicas: 8, OnUnavailable: FailClosed, Budget: life, Lease: Lease{Max: 1000, Life: life}})
	if err != nil {
		return err
	}
	if role == "left" {
		return beLeft(t)
	}
	return beCrowd(t)
}

// beCrowd ramps up leases, sits on them, and spends all at once, for as long as it takes to
// be admitted some from leases. It prints between which times each unit was admitted, in
// ns of Unix time.
func beCrowd(t *Tier) error {
	out := bufio.NewWriter(os.Stdout)
	begin := time.Now()
	for time.Since(begin) < 1500*time.Millisecond || t.Stats().Lease < 20 && time.Since(begin) < 20*time.Second {
		sit := rand.N(300 * time.Millisecond)
		for i := range 400 {
			from := time.Now().UnixNano()
			d, err := t.Take(context.Background(), "a", 1)
			if err == nil && d.Allowed {
				fmt.Fprintln(out, from, time.Now().UnixNano())
			}
			if i == 30 {
				<-time.After(sit)
			}
		}
	}
	fmt.Fprintln(out, "leases", t.Stats().Lease)
	if err := out.Flush(); err != nil {
		return err
	}
	return t.Close(context.Background())
}

// beLeft spends until it has a lease with units left, says how many it was admitted, how
// many it may have been charged, and how many it has spent and has left of the lease, and
// waits to be killed.
func beLeft(t *Tier) error {
	admitted, late := 0, 0
	for cost := 500; ; cost = 1 {
		d, err := t.Take(context.Background(), "a", cost)
		switch {
		case err != nil: // on a machine that is busy: charged or not
			late += cost
		case d.Allowed:
			admitted += cost
		}
		if h := t.held(); h.left > 0 {
			fmt.Println(admitted, late, h.spent, h.left)
			_, err := io.Copy(io.Discard, os.Stdin) // which never ends
			return err
		}
	}
}

// startReplica starts a process of a role, which ends with the test. It can write to the process, and read from it.
func startReplica(t *testing.T, addr, prefix, role string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", replicaEnv, addr, prefix, role))
	cmd.Stderr = os.Stderr
	in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err = cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, in, out
}

// TestLease_Processes: eight processes with leases of one key are together admitted no more
// than the limit, in any span of time.
func TestLease_Processes(t *testing.T) {
	t.Parallel() // it mostly waits
	eachServer(t, leaseProcesses)
}

func leaseProcesses(t *testing.T, s *server) {
	prefix := newPrefix()
	var cmds []*exec.Cmd
	var outs []io.Reader
	for i := range 8 {
		cmd, _, out := startReplica(t, s.addr, prefix, []string{"crowd", "leaders"}[i%2])
		cmds, outs = append(cmds, cmd), append(outs, out)
	}
	var units []admission
	leased := 0
	for i, out := range outs {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), "leases "); ok {
				n := 0
				_, err := fmt.Sscan(rest, &n)
				require.NoError(t, err)
				leased += n
				continue
			}
			var a admission
			_, err := fmt.Sscan(lines.Text(), &a.from, &a.to)
			require.NoError(t, err)
			units = append(units, a)
		}
		require.NoError(t, cmds[i].Wait())
	}
	t.Logf("%d units admitted, %d of them from leases", len(units), leased)
	require.Positive(t, leased)
	most := excess(units, crowdLimit)
	t.Logf("the most that any span admits beyond its bound: %.0f", most)
	require.LessOrEqual(t, most, 20., "10 ms of the limit, for clocks; schemes that are wrong exceed it by what is on lease")

	l := newLimiter(t, s.client, Config{Limit: crowdLimit, Prefix: prefix})
	await(t, "nothing is on lease", func() bool {
		r, err := l.run(ctx, l.request(l.plan.Load(), "a"))
		require.NoError(t, err)
		return r.b == 0
	})
}

// An admission is a unit that was admitted at some time between two, in ns.
type admission struct{ from, to int64 }

// excess returns by how many units the busiest span exceeds what the limit admits in it. It
// counts those units in a span that were certainly admitted within it.
//
// With the beginnings of spans sorted, and units added in the order of their ends, the
// excess of all spans that end with a unit is the largest of n(a) + rate*a, less burst +
// rate*b: n(a) is one more for all a up to the unit's beginning.
func excess(units []admission, limit sluice.Limit) float64 {
	if len(units) == 0 {
		return 0
	}
	rate := float64(limit.Rate) / float64(limit.Period)
	starts := make([]int64, len(units))
	for i, u := range units {
		starts[i] = u.from
	}
	slices.Sort(starts)
	sort.Slice(units, func(i, j int) bool { return units[i].to < units[j].to })
	tree := newMaxTree(len(starts))
	worst := math.Inf(-1)
	origin := starts[0]
	known := make([]bool, len(starts))
	for _, u := range units {
		i, _ := slices.BinarySearch(starts, u.from)
		if !known[i] {
			known[i] = true
			tree.add(i, i, rate*float64(u.from-origin)-tree.hidden)
		}
		tree.add(0, i, 1)
		worst = max(worst, tree.max()-float64(limit.Burst)-rate*float64(u.to-origin))
	}
	return worst
}

// A maxTree holds numbers, of which ranges can be raised, and knows the largest. At first
// all are so small that they are none.
type maxTree struct {
	size   int
	hidden float64
	top    []float64 // of a node's range, without what is added above
	added  []float64
}

func newMaxTree(n int) *maxTree {
	t := &maxTree{size: 1, hidden: -1e9}
	for t.size < n {
		t.size *= 2
	}
	t.top, t.added = make([]float64, 2*t.size), make([]float64, 2*t.size)
	for i := range t.top {
		t.top[i] = t.hidden
	}
	return t
}

func (t *maxTree) add(from, to int, x float64) { t.addIn(1, 0, t.size-1, from, to, x) }
func (t *maxTree) max() float64                { return t.top[1] }

func (t *maxTree) addIn(node, low, high, from, to int, x float64) {
	switch {
	case to < low || high < from:
	case from <= low && high <= to:
		t.top[node] += x
		t.added[node] += x
	default:
		mid := (low + high) / 2
		t.addIn(2*node, low, mid, from, to, x)
		t.addIn(2*node+1, mid+1, high, from, to, x)
		t.top[node] = max(t.top[2*node], t.top[2*node+1]) + t.added[node]
	}
}

// TestExcess compares with counting.
func TestExcess(t *testing.T) {
	rng := seeded.Rand(t)
	for range 50 {
		limit := sluice.PerSecond(1 + rng.IntN(1000)).WithBurst(1 + rng.IntN(20))
		units := make([]admission, 1+rng.IntN(60))
		for i := range units {
			units[i].from = rng.Int64N(100_000_000)
			units[i].to = units[i].from + rng.Int64N(20_000_000)
		}
		want := math.Inf(-1)
		for _, first := range units {
			for _, last := range units {
				n := 0
				for _, u := range units {
					if first.from <= u.from && u.to <= last.to {
						n++
					}
				}
				if n > 0 {
					want = max(want, float64(n)-float64(limit.Burst)-float64(limit.Rate)*float64(last.to-first.from)/1e9)
				}
			}
		}
		require.InDelta(t, want, excess(units, limit), 0.01)
	}
}

// TestLease_Killed: a process that is killed has spent the units that it had on lease, two
// epochs later at the latest, and nothing else is lost.
func TestLease_Killed(t *testing.T) {
	t.Parallel() // it mostly waits
	eachServer(t, leaseKilled)
}

func leaseKilled(t *testing.T, s *server) {
	prefix := newPrefix()
	begin := time.Now()
	cmd, _, out := startReplica(t, s.addr, prefix, "left")
	var admitted, late, spent, left int
	_, err := fmt.Fscan(out, &admitted, &late, &spent, &left)
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	l := newLimiter(t, s.client, Config{Limit: leftLimit, Prefix: prefix})
	await(t, "what the process held has lapsed", func() bool {
		r, err := l.run(ctx, l.request(l.plan.Load(), "a"))
		require.NoError(t, err)
		return r.b == 0
	})
	drained := leftLimit.Rate * (1 + int(time.Since(begin)/time.Second))
	d, err := l.Peek(ctx, "a", 0)
	require.NoError(t, err)
	t.Logf("%d admitted, %d spent and %d left of a lease: %d of 1000 remain", admitted, spent, left, d.Remaining)
	require.GreaterOrEqual(t, d.Remaining, 1000-admitted-late-left, "the lease, and no more")
	require.LessOrEqual(t, d.Remaining, min(1000, 1000-admitted-left+drained), "and no less")
}
