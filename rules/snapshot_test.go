package rules

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

const kinds = `
domain: d
descriptors:
- {key: minute, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: year, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: period, rate_limit: {period: 7h, requests_per_unit: 10}}
- {key: gcra, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: gcra}}
- {key: log, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding-log}}
- {key: login, rate_limit: {unit: hour, requests_per_unit: 10, block_for: 3h}}
`

var kindKeys = []string{"minute=a", "year=a", "period=a", "gcra=a", "log=a", "login=a"}

func (w *world) snapshot() []byte {
	var b bytes.Buffer
	require.NoError(w.tb, w.Snapshot(&b))
	return b.Bytes()
}

// restored is a world that goes on from a snapshot, by its own rules.
func (w *world) restored(text string, snapshot []byte) (*world, error) {
	out := &world{tb: w.tb, clock: sluice.NewManualClock(time.Unix(0, w.clock.Now()))}
	var err error
	out.Engine, err = Restore(mustLoad(w.tb, text), Config{Clock: out.clock}, bytes.NewReader(snapshot))
	return out, err
}

func TestSnapshot_AllKinds(t *testing.T) {
	w := newWorld(t, Config{}, kinds+"- {key: own, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	for _, k := range kindKeys {
		w.ask(withHits(k, 4))
	}
	w.ask(withHits("login=bad", 11))
	w.ask(override("no=rule", 10, Day))
	again, err := w.restored(kinds, w.snapshot())
	require.NoError(t, err)
	for _, k := range kindKeys {
		require.Equal(t, 6, again.left(k), k)
	}
	again.one("login=bad")
	require.EqualValues(t, 8, again.ask(override("no=rule", 10, Day)).Statuses[0].Remaining)
	require.Equal(t, 10, again.left("minute=b"))
}

// TestSnapshot_OtherRules: other limits meet the old counts; a rule that counts in another way begins afresh.
func TestSnapshot_OtherRules(t *testing.T) {
	w := newWorld(t, Config{}, kinds)
	for _, k := range kindKeys {
		w.ask(withHits(k, 4))
	}
	again, err := w.restored(`
domain: d
descriptors:
- {key: minute, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: year, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: period, rate_limit: {period: 8h, requests_per_unit: 10}}
- {key: gcra, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token-bucket}}
- {key: log, rate_limit: {unit: hour, requests_per_unit: 7, algorithm: sliding-log}}
`, w.snapshot())
	require.NoError(t, err)
	for k, want := range map[string]int{"minute=a": 1, "year=a": 0, "period=a": 10, "gcra=a": 10, "log=a": 3} {
		require.Equal(t, want, again.left(k), k)
	}
}

// TestSnapshot_DomainCounters: a domain's counts survive a restart after which it has counters of its own, or no longer
// has; where they cannot, it is named.
func TestSnapshot_DomainCounters(t *testing.T) {
	text := func(options string) string {
		return "domain: d\n" + options + "\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 10}}\n- {key: m, rate_limit: {unit: minute, requests_per_unit: 10}}\n"
	}
	common, own, other := text(""), text("sluice: {max_keys: 100}"), text("sluice: {max_keys: 200, overflow: deny-new}")
	tight := text("sluice: {max_keys: 1}")
	for _, c := range []struct {
		name, before, after string
		want                int
		lost                []string
	}{
		{"its own stay", own, own, 9, nil},
		{"with more room", own, other, 9, nil},
		{"it gets its own", common, own, 9, nil},
		{"it gets its own, with room for one key", common, tight, 9, nil},
		{"it has no longer its own", own, common, 9, nil},
		{"others' would keep new keys out", common, other, 10, []string{"d"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{}, c.before)
			w.one("k=a")
			again, err := w.restored(c.after, w.snapshot())
			require.NoError(t, err)
			require.Equal(t, c.want, again.left("k=a"))
			require.Equal(t, 10, again.left("m=a"))
			require.Equal(t, c.lost, again.Unrestored())
			third, err := again.restored(c.after, again.snapshot())
			require.NoError(t, err)
			require.Equal(t, c.want, third.left("k=a"))
			require.Empty(t, third.Unrestored(), "not again")
		})
	}

	w := newWorld(t, Config{Overflow: sluice.OverflowDenyNew}, own)
	for i := range 50 {
		w.one(fmt.Sprint("k=", i))
	}
	again := &world{tb: t, clock: w.clock}
	var err error
	again.Engine, err = Restore(mustLoad(t, common), Config{Clock: w.clock, MaxKeys: 10, Overflow: sluice.OverflowDenyNew}, bytes.NewReader(w.snapshot()))
	require.NoError(t, err, "a domain that does not fit is no reason not to start")
	require.Equal(t, []string{"d"}, again.Unrestored())
	require.Equal(t, 10, again.left("k=1"))
}

// TestSnapshot_Damage: no bit of a snapshot can change, and no end can be missing, without an error.
func TestSnapshot_Damage(t *testing.T) {
	w := newWorld(t, Config{}, kinds)
	for _, k := range kindKeys {
		w.ask(withHits(k, 4))
	}
	good := w.snapshot()
	for i := 0; i < len(good); i += 7 {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		_, err := w.restored(kinds, bad)
		require.ErrorIs(t, err, sluice.ErrBadSnapshot, i)
		_, err = w.restored(kinds, good[:i])
		require.ErrorIs(t, err, sluice.ErrBadSnapshot, i)
	}
	_, err := w.restored(kinds, append(bytes.Clone(good), 0))
	require.ErrorIs(t, err, sluice.ErrBadSnapshot)
}

func sign(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// TestSnapshot_Forged: lengths that lie, under a checksum that is right, are errors and not panics.
func TestSnapshot_Forged(t *testing.T) {
	head := append([]byte(snapshotMagic), make([]byte, 16)...)
	for name, tail := range map[string][]byte{
		"no end":        {},
		"a short end":   {0, 0},
		"a long name":   {255, 255, 255, 255},
		"no state":      {1, 0, 0, 0, 'x'},
		"a long state":  {1, 0, 0, 0, 'x', 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0},
		"behind end":    {0, 0, 0, 0, 1, 0, 0, 0},
		"state, no end": {1, 0, 0, 0, 'x', 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
	} {
		_, _, err := parseSnapshot(sign(append(bytes.Clone(head), tail...)))
		require.ErrorIs(t, err, sluice.ErrBadSnapshot, name)
	}
	_, _, err := parseSnapshot(sign(append(bytes.Clone(head), 0, 0, 0, 0)))
	require.NoError(t, err)
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space") }
func (failing) Read([]byte) (int, error)  { return 0, errors.New("no disk") }

func TestSnapshot_Errors(t *testing.T) {
	w := newWorld(t, Config{}, kinds)
	require.EqualError(t, w.Snapshot(failing{}), "no space")
	_, err := Restore(mustLoad(t, kinds), Config{}, failing{})
	require.EqualError(t, err, "no disk")
}

func FuzzRestore(f *testing.F) {
	w := &world{tb: f, clock: sluice.NewManualClock(start)}
	e, err := New(mustLoad(f, kinds), Config{Clock: w.clock})
	require.NoError(f, err)
	w.Engine = e
	w.one("minute=a")
	good := w.snapshot()
	f.Add(good[:len(good)-sha256.Size])
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &world{tb: t, clock: w.clock}
		sum := sha256.Sum256(b)
		_, err := w.restored(kinds, append(bytes.Clone(b), sum[:]...))
		if err != nil && !errors.Is(err, sluice.ErrBadSnapshot) {
			t.Fatal(err)
		}
	})
}
