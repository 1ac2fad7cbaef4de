package sluice

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var writeSnapshots = flag.Bool("write-snapshots", false, "write testdata/snapshot-v*; for a new snapshotVersion only")

// snapshotConfigs are one configuration for each way in which a word and a tail are laid
// out, with limits under which a snapshot is small.
func snapshotConfigs() map[string]Config {
	configs := map[string]Config{}
	for name, c := range everyMany {
		configs[name] = small(c)
	}
	return configs
}

// storied returns a limiter with a key in every state that a snapshot can show. Their ids
// are such that they stand in the same order in any table.
func storied(tb testing.TB, c Config, clock *ManualClock) *Limiter {
	tb.Helper()
	c.Clock, c.Shards = clock, 1
	l := mustNew(tb, c)
	l.KeyHash(1).Take(2)
	clock.Advance(time.Second)
	l.KeyHash(1).Take(1)
	l.KeyHash(2).Block(time.Hour)
	l.KeyHash(3).Take(3)
	l.KeyHash(3).Take(int(l.policyOf(0).burst)) // denied
	l.KeyHash(4).Take(1)
	l.KeyHash(4).Refund(1) // idle
	return l
}

// planned is storied, with keys that have limits of their own.
func planned(tb testing.TB, c Config, clock *ManualClock) *Limiter {
	tb.Helper()
	l := storied(tb, c, clock)
	plan := Per(6, c.Limit.Period)
	brought, err := l.KeyHash(8).WithLimit(plan)
	require.NoError(tb, err)
	brought.AllowN(3)
	require.NoError(tb, l.SetPlan("pro", plan))
	require.NoError(tb, l.SetPlan("nobody's", plan))
	require.NoError(tb, l.KeyHash(5).SetPlan("pro"))
	require.NoError(tb, l.KeyHash(6).SetLimit(Per(4, c.Limit.Period)))
	require.NoError(tb, l.KeyHash(7).SetLimit(DenyAll)) // and has no state
	for _, k := range []Key{l.KeyHash(5), l.KeyHash(6), l.KeyHash(7)} {
		k.AllowN(3)
	}
	return l
}

// TestSnapshot_LayoutIsThatOfItsVersion: what earlier builds have written must be read as
// they meant it.
func TestSnapshot_LayoutIsThatOfItsVersion(t *testing.T) {
	for name, c := range snapshotConfigs() {
		t.Run("layout="+name, func(t *testing.T) {
			clock := NewManualClock(start)
			l := planned(t, c, clock)
			written := snapshotOf(t, l)
			file := filepath.Join("testdata", fmt.Sprint("snapshot-v", snapshotVersion), name+".hex")
			if *writeSnapshots {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, []byte(hexLines(written)), 0o644))
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err, "a new version, or a new layout: go test -run %s -write-snapshots", t.Name())
			golden, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			require.NoError(t, err)
			require.Equal(t, golden, written, "The words of %s are no longer those of version %d. Restore would take the "+
				"snapshots of earlier builds for something else: raise snapshotVersion, then go test -write-snapshots.", name, snapshotVersion)
			c.Clock = clock
			other := mustNew(t, c)
			require.NoError(t, other.Restore(bytes.NewReader(golden)))
			for id := range uint64(9) {
				require.Equal(t, l.KeyHash(id).Peek(1), other.KeyHash(id).Peek(1), "key %d", id)
			}
			require.Equal(t, maps.Collect(l.Plans()), maps.Collect(other.Plans()))
			require.Equal(t, limitsOf(l), limitsOf(other))
			checkCells(t, other, nil, map[string]bool{"5": true, "6": true, "7": true})
		})
	}
}

// limitsOf returns the limits of keys by id.
func limitsOf(l *Limiter) map[uint64]KeyLimit {
	all := map[uint64]KeyLimit{}
	for k, limit := range l.KeyLimits() {
		all[k.id] = limit
	}
	return all
}

// hexLines writes b in lines of 32 bytes, which a diff can show.
func hexLines(b []byte) string {
	var lines strings.Builder
	for ; len(b) > 0; b = b[min(32, len(b)):] {
		fmt.Fprintf(&lines, "%x\n", b[:min(32, len(b))])
	}
	return lines.String()
}
