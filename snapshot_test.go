package sluice

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/snapfile"
)

// snapshotOf returns what Snapshot writes.
func snapshotOf(tb testing.TB, l *Limiter) []byte {
	tb.Helper()
	var b bytes.Buffer
	require.NoError(tb, l.Snapshot(&b))
	return b.Bytes()
}

// restoredFrom returns a limiter that has taken over a snapshot.
func restoredFrom(tb testing.TB, c Config, data []byte) *Limiter {
	tb.Helper()
	l := mustNew(tb, c)
	require.NoError(tb, l.Restore(bytes.NewReader(data)))
	return l
}

// small returns c with a limit whose snapshots are small, and Hash Stable.
func small(c Config) Config {
	c.Hash = HashStable
	if c.Algorithm == SlidingLog {
		c.Limit = PerMinute(5)
	}
	return c
}

// sealed returns a snapshot with its checksum put right.
func sealed(b []byte) []byte {
	body := b[:len(b)-8]
	return binary.LittleEndian.AppendUint64(bytes.Clone(body), xxhash.Sum64(body))
}

// requireUntouched demands that a failed Restore has left nothing behind.
func requireUntouched(tb testing.TB, l *Limiter, p *policy, err error) {
	tb.Helper()
	require.Error(tb, err)
	require.Zero(tb, l.Len(), "%v", err)
	require.Empty(tb, snapshot(l), "%v", err)
	require.Same(tb, p, l.current.Load(), "%v", err)
}

func TestSnapshot_RestoresEveryKey(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, block := range []time.Duration{0, time.Hour} {
			c := c
			c.Hash = HashStable
			c.BlockFor = block
			l, clock := newFrozen(t, c)
			c.Clock = clock
			for i := range 100 {
				l.AllowN(fmt.Sprint("key", i), i)
			}
			l.Key("blocked").Block(time.Hour)
			require.NoError(t, l.Key("key7").SetLimit(Per(1000, c.Limit.Period)))
			l.AllowN("key7", 700)
			data := snapshotOf(t, l)
			clock.Advance(sec)
			other := mustNew(t, c)
			require.NoError(t, other.Key("key7").SetLimit(Per(1000, c.Limit.Period)))
			require.NoError(t, other.Restore(bytes.NewReader(data)))
			for i := range 100 {
				key := fmt.Sprint("key", i)
				require.Equal(t, l.Key(key).Peek(1), other.Key(key).Peek(1), key)
			}
			require.Equal(t, l.Key("blocked").Peek(1), other.Key("blocked").Peek(1))
			require.True(t, other.Allow("key3"))
			before := snapshot(other)
			require.NoError(t, other.Restore(bytes.NewReader(data)))
			require.Equal(t, before, snapshot(other), "what it has is as strict, or stricter")
		}
	})
}

func TestSnapshot_NeedsStableHash(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerHour(5)})
	var b bytes.Buffer
	require.ErrorContains(t, l.Snapshot(&b), "want Config.Hash stable")
	require.Zero(t, b.Len())
	require.ErrorContains(t, l.Restore(&b), "want Config.Hash stable")
}

// TestSnapshot_LeavesIdleKeysOut: a file of what no longer matters would only grow.
func TestSnapshot_LeavesIdleKeysOut(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c = small(c)
		l, clock := newFrozen(t, c)
		empty := len(snapshotOf(t, l))
		l.Allow("k")
		l.Key("blocked").Block(time.Minute)
		require.NoError(t, l.Key("vip").SetLimit(Per(1, c.Limit.Period)))
		l.Allow("vip")
		require.Greater(t, len(snapshotOf(t, l)), empty)
		clock.Advance(time.Hour)
		l.Key("vip").ClearLimit()
		before := snapshot(l)
		require.Equal(t, empty, len(snapshotOf(t, l)))
		require.Equal(t, before, snapshot(l), "writing changes nothing")
	})
}

// TestRestore_NoticesEveryChange: each prefix, each byte changed, bytes appended.
func TestRestore_NoticesEveryChange(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, block := range []time.Duration{0, time.Hour} {
			c := small(c)
			c.BlockFor = block
			l, clock := newFrozen(t, c)
			l.Take("k", 2)
			l.Key("blocked").Block(time.Hour)
			c.Clock, c.Shards = clock, 1
			data, target := snapshotOf(t, l), mustNew(t, c)
			p := target.current.Load()
			for n := range data {
				err := target.Restore(bytes.NewReader(data[:n]))
				requireUntouched(t, target, p, err)
				require.ErrorIs(t, err, ErrBadSnapshot, "%d bytes", n)
			}
			for i := range data {
				for _, change := range []byte{1, 0x80} {
					changed := bytes.Clone(data)
					changed[i] ^= change
					err := target.Restore(bytes.NewReader(changed))
					requireUntouched(t, target, p, err)
					require.ErrorIs(t, err, ErrBadSnapshot, "byte %d", i)
				}
			}
			err := target.Restore(bytes.NewReader(append(bytes.Clone(data), 0)))
			requireUntouched(t, target, p, err)
			require.ErrorIs(t, err, ErrBadSnapshot)
			require.ErrorContains(t, err, "follows")
			require.NoError(t, target.Restore(bytes.NewReader(data)), "it can be tried again")
			require.Equal(t, l.Key("k").Peek(1), target.Key("k").Peek(1))
		}
	})
}

// TestRestore_SaysWhatIsWrong, and that it is the input.
func TestRestore_SaysWhatIsWrong(t *testing.T) {
	c := Config{Algorithm: TokenBucket, Limit: PerMinute(5), Hash: HashStable, Clock: NewManualClock(start), Shards: 1}
	l := mustNew(t, c)
	l.Allow("k")
	data := snapshotOf(t, l)
	with := func(change func(c *Config)) Config {
		c := c
		change(&c)
		return c
	}
	version := bytes.Clone(data)
	version[7]++
	for want, r := range map[string]struct {
		c    Config
		data []byte
	}{
		"does not begin as one":               {c, []byte("PK\x03\x04 some other file")},
		"cut short":                           {c, nil},
		"its version is 6; want 5":            {c, version},
		"token-bucket; want gcra":             {with(func(c *Config) { c.Algorithm = GCRA }), data},
		"token-bucket; want token-bucket-int": {with(func(c *Config) { c.Algorithm = TokenBucketInterval }), data},
		"algorithm Algorithm(9); want token":  {c, sealed(append(append(bytes.Clone(data[:9]), 9), data[10:]...))},
		"its checksum is wrong":               {c, append(bytes.Clone(data[:len(data)-1]), ^data[len(data)-1])},
	} {
		target := mustNew(t, r.c)
		p := target.current.Load()
		err := target.Restore(bytes.NewReader(r.data))
		requireUntouched(t, target, p, err)
		require.ErrorIs(t, err, ErrBadSnapshot)
		require.ErrorContains(t, err, want)
	}
	fixed := with(func(c *Config) { c.Algorithm = FixedWindow })
	first := with(func(c *Config) { c.Algorithm = FixedWindowFirstCharge })
	err := mustNew(t, fixed).Restore(bytes.NewReader(snapshotOf(t, mustNew(t, first))))
	require.ErrorIs(t, err, ErrBadSnapshot)
	require.ErrorContains(t, err, "fixed-window-first-charge; want fixed-window")
}

// A shortWriter takes left bytes and then fewer than it is given, without an error.
type shortWriter struct{ left int }

func (w *shortWriter) Write(b []byte) (int, error) {
	n := min(len(b), w.left)
	w.left -= n
	return n, nil
}

// A failingWriter takes left bytes and then fails.
type failingWriter struct{ left int }

var errDisk = errors.New("the disk is full")

func (w *failingWriter) Write(b []byte) (int, error) {
	n := min(len(b), w.left)
	if w.left -= n; n < len(b) {
		return n, errDisk
	}
	return n, nil
}

func TestSnapshot_PassesErrorsOn(t *testing.T) {
	c := Config{Limit: PerMinute(5), Hash: HashStable, Clock: NewManualClock(start), Shards: 1}
	l := mustNew(t, c)
	for i := range 400 {
		l.KeyUint64(uint64(i)).Allow() // more than a buffer of bufio
	}
	data := snapshotOf(t, l)
	target := mustNew(t, c)
	p := target.current.Load()
	for n := 0; n < len(data); n += 1 + n/20*(len(data)-n)/len(data) {
		require.ErrorIs(t, l.Snapshot(&failingWriter{n}), errDisk, "%d bytes", n)
		require.ErrorIs(t, l.Snapshot(&shortWriter{n}), io.ErrShortWrite, "%d bytes", n)
		err := target.Restore(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(errDisk)))
		requireUntouched(t, target, p, err)
		require.ErrorIs(t, err, errDisk)
		require.NotErrorIs(t, err, ErrBadSnapshot, "the input has not been seen")
	}
	for n := len(data) - 9; n <= len(data); n++ { // the checksum, and what is after it
		if n < len(data) {
			require.ErrorIs(t, l.Snapshot(&failingWriter{n}), errDisk, "%d bytes", n)
			require.ErrorIs(t, l.Snapshot(&shortWriter{n}), io.ErrShortWrite, "%d bytes", n)
		}
		err := target.Restore(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(errDisk)))
		requireUntouched(t, target, p, err)
		require.ErrorIs(t, err, errDisk)
	}
	require.NoError(t, target.Restore(iotest.OneByteReader(bytes.NewReader(data))))
	require.Equal(t, 400, target.Len())
	require.NoError(t, mustNew(t, c).Restore(iotest.DataErrReader(bytes.NewReader(data))))
}

// TestRestore_AllocatesWhatItHasRead: what a header claims costs nothing.
func TestRestore_AllocatesWhatItHasRead(t *testing.T) {
	skipUnderRace(t)
	c := Config{Algorithm: SlidingLog, Limit: PerMinute(maxLog), Hash: HashStable, Clock: NewManualClock(start), Shards: 1}
	empty := snapshotOf(t, mustNew(t, c))
	head := empty[:len(empty)-4-1-8]
	many := append(bytes.Clone(head), 0xff, 0xff, 0xff, 0xff) // keys
	for name, data := range map[string][]byte{
		"keys": many,
		"tail": append(bytes.Clone(many), bytes.Repeat([]byte{1}, 100)...),
	} {
		target := mustNew(t, c)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := target.Restore(bytes.NewReader(data))
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, ErrBadSnapshot, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100_000), name)
	}
	// Room that no key has used is not made for those to come.
	c.Limit = PerMinute(5)
	require.Equal(t, 5, restoredFrom(t, c, empty).current.Load().reach)
}

var writeSnapshots = flag.Bool("write-snapshots", false, "write testdata/snapshot-v*; for a new version only")

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
	l.KeyHash(3).Take(burstOf(l)) // denied
	l.KeyHash(4).Take(1)
	l.KeyHash(4).Refund(1) // idle
	return l
}

// withOwnLimits is storied, with keys that have limits of their own.
func withOwnLimits(tb testing.TB, c Config, clock *ManualClock) *Limiter {
	tb.Helper()
	l := storied(tb, c, clock)
	own := Per(6, c.Limit.Period)
	brought, err := l.KeyHash(8).WithLimit(own)
	require.NoError(tb, err)
	brought.AllowN(3)
	require.NoError(tb, l.KeyHash(5).SetLimit(own))
	require.NoError(tb, l.KeyHash(6).SetLimit(Per(4, c.Limit.Period)))
	require.NoError(tb, l.KeyHash(7).SetLimit(DenyAll)) // and has no state
	for _, k := range []Key{l.KeyHash(5), l.KeyHash(6), l.KeyHash(7)} {
		k.AllowN(3)
	}
	return l
}

// TestSnapshot_LayoutIsThatOfItsVersion: what other builds of this version have written must be read as
// they meant it.
func TestSnapshot_LayoutIsThatOfItsVersion(t *testing.T) {
	for name, c := range snapshotConfigs() {
		t.Run("layout="+name, func(t *testing.T) {
			clock := NewManualClock(start)
			l := withOwnLimits(t, c, clock)
			written := snapshotOf(t, l)
			file := filepath.Join("testdata", fmt.Sprint("snapshot-v", snapfile.Version), name+".hex")
			if *writeSnapshots {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, []byte(hexLines(written)), 0o644))
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err, "a new version, or a new layout: go test -run %s -write-snapshots", t.Name())
			golden, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			require.NoError(t, err)
			require.Equal(t, contentOf(t, golden), contentOf(t, written), "The words of %s are no longer those of version %d. Restore would take the "+
				"snapshots of other builds for something else: raise snapfile.Version, then go test -write-snapshots.", name, snapfile.Version)
			c.Clock = clock
			other := mustNew(t, c)
			require.NoError(t, other.Restore(bytes.NewReader(golden)))
			for id := range uint64(9) {
				require.Equal(t, l.KeyHash(id).Peek(1), other.KeyHash(id).Peek(1), "key %d", id)
			}
			require.Equal(t, limitsOf(l), limitsOf(other))
		})
	}
}

// contentOf returns the entries of a snapshot by their sections and hashes, without the order of the places.
func contentOf(t *testing.T, data []byte) map[snapfile.Header]map[uint64][]byte {
	t.Helper()
	all := map[snapfile.Header]map[uint64][]byte{}
	for in := snapfile.NewReader(bytes.NewReader(data)); ; {
		h, ok, err := in.Section()
		require.NoError(t, err)
		if !ok {
			return all
		}
		if all[h] == nil {
			all[h] = map[uint64][]byte{}
		}
		for {
			hash, word, ok, err := in.Entry()
			require.NoError(t, err)
			if !ok {
				break
			}
			var tail []atomic.Uint64
			if word != elsewhere {
				tail, err = in.Tail(h.TailLen)
				require.NoError(t, err)
			}
			var e snapfile.Entries
			e.Add(hash, word, tail)
			all[h][hash] = e.Bytes
		}
	}
}

// limitsOf returns the limits of keys by hash.
func limitsOf(l *Limiter) map[uint64]Limit {
	all := map[uint64]Limit{}
	for i := range l.shards {
		l.cellsOf(i, func(c *cell) {
			if c.kept != nil {
				all[l.hash.Hash(c.id.Load())] = c.kept.limit
			}
		})
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
