//go:build linux

package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain makes this program the servers that it starts.
func TestMain(m *testing.M) {
	if kind := os.Getenv(kindVariable); kind != "" {
		serve(kind)
	}
	os.Exit(m.Run())
}

// TestSharedCost: the shared mode counts what each of the two asks of Redis. How long anything takes is no part of it.
func TestSharedCost(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	t.Chdir("..") // where the program is run
	b, err := openShared(t.Context(), t.TempDir(), nil, "--store-budget", "10s")
	require.NoError(t, err)
	defer b.close()
	byName := named(b.subjects)
	us, them, cached, floor := byName[sluiceName], byName[upstreamService], byName[cachedName], byName[emptyKind]
	for _, w := range workloads() {
		table, err := b.turns(t.Context(), &w, 1, 400)
		require.NoError(t, err)
		table.print()
		table.printRatios()
		const noise = 0.3 // of what processes of sluice tell Redis once a second, while calls of others are counted
		commandsOf := func(s *subject) float64 { return table.median(s, commands) }
		require.Less(t, commandsOf(floor), noise, w.name)
		require.InDelta(t, 2+noise/2, commandsOf(them), noise/2, "%s: upstream's are INCRBY and EXPIRE", w.name)
		require.Zero(t, table.median(us, without), w.name)
		require.Positive(t, table.median(us, service), w.name)
		require.Positive(t, table.median(us, redis), w.name)
		switch {
		case w.fresh:
			require.InDelta(t, 1+noise/2, table.median(us, sent), noise/2, "%s: a script for each key", w.name)
			require.Greater(t, table.median(us, memory), 50., w.name)
			require.Greater(t, table.median(them, memory), 50., w.name)
		case w.over:
			require.Less(t, commandsOf(us), noise, "denials are remembered")
			require.Less(t, commandsOf(cached), noise, "in upstream's cache, too")
		default:
			require.Less(t, table.median(us, sent), table.median(them, sent), w.name)
		}
	}
	w := workloads()[0]
	_, err = b.latencies(t.Context(), &w, 1, 100)
	require.NoError(t, err)
	_, err = b.fleet(t.Context(), 1, 100)
	require.NoError(t, err)
}

// TestFleetCost: the fleet mode counts what processes ask of the system, and of Redis.
func TestFleetCost(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	t.Chdir("..")
	b, err := openBeside(t.Context(), t.TempDir(), nil)
	require.NoError(t, err)
	defer b.close()
	require.NoError(t, b.keepBusy(1))
	for _, l := range besideLoads(0)[:2] {
		table, err := b.beside(t.Context(), &l, 1, 2*besideRate)
		require.NoError(t, err)
		table.printSystem()
		table.besideBudgets(&l, 0)
		table.besideBudgets(&l, 1)
		for _, s := range b.subjects {
			require.Len(t, s.pids, besideProcesses)
			require.Positive(t, table.median(s, func(c turnCost) float64 { return c.switches }), s.name)
			require.Equal(t, s.name != emptyKind, table.goroutines[s] > 1, "%s: of a call at least its connection's and its own begin to run", s.name)
		}
		require.Greater(t, table.median(named(b.subjects)[upstreamService], sent), 1.9, "INCRBY and EXPIRE")
		require.Less(t, table.median(named(b.subjects)[sluiceName], sent), 1.9)
	}
}
