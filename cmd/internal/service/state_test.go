package service

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

func TestState_SurvivesARestart(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	args := []string{"--rules", rulesFile(t, someRules), "--state", state, "--manual-clock"}
	r := start(t, args...)
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	assert.Equal(t, 2, remaining(t, r.dial(), "own"))
	r.end()
	info, err := os.Stat(state)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode(), "it holds the key of the hash")

	r = start(t, args...)
	assert.Equal(t, 0, remaining(t, r.dial(), "two"))
	assert.Equal(t, 1, remaining(t, r.dial(), "own"))
	r.end()
	entries, err := os.ReadDir(filepath.Dir(state))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "no temporary file is left")
}

func TestState_Regularly(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	rules := rulesFile(t, someRules)
	r := start(t, "--rules", rules, "--state", state, "--state-every", "1ms", "--manual-clock")
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	copied := filepath.Join(t.TempDir(), "copy") // what a process leaves behind that is killed
	servetest.Eventually(t, "a state with the count", func() bool {
		data, err := os.ReadFile(state)
		if err != nil {
			return false
		}
		require.NoError(t, os.WriteFile(copied, data, 0o600))
		again := start(t, "--rules", rules, "--state", copied, "--manual-clock")
		left := remaining(t, again.dial(), "two")
		again.end()
		return left == 0
	})
}

// TestState_CannotBeWrittenMeanwhile: the service goes on, and its log says so.
func TestState_CannotBeWrittenMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	r := start(t, "--rules", rulesFile(t, someRules), "--state", filepath.Join(dir, "state"), "--state-every", "1ms", "--manual-clock")
	gone := dir + "-gone"
	require.NoError(t, os.Rename(dir, gone))
	servetest.Eventually(t, "a line about it", func() bool {
		return r.lines("level=ERROR", "counts since the last time are lost if the process dies", "no such file") > 0
	})
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	require.NoError(t, os.Rename(gone, dir))
	r.end()
}

// TestState_Damaged: what cannot be read is put aside, and the service starts.
func TestState_Damaged(t *testing.T) {
	dir := t.TempDir()
	state, rules := filepath.Join(dir, "state"), rulesFile(t, someRules)
	args := []string{"--rules", rules, "--state", state, "--manual-clock"}
	r := start(t, args...)
	remaining(t, r.dial(), "two")
	r.end()
	good, err := os.ReadFile(state)
	require.NoError(t, err)
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 4
	for i, data := range [][]byte{{}, good[:len(good)-1], good[:len(good)/2], flipped, []byte("some other file")} {
		require.NoError(t, os.WriteFile(state, data, 0o600))
		r := start(t, args...)
		assert.Equal(t, 1, remaining(t, r.dial(), "two"), i)
		r.oneProblem("the state cannot be read: it is put aside, and counts begin at 0", aside(state, i))
		r.end()
		for j, before := range [][]byte{{}, good[:len(good)-1]} { // no other file takes their names
			if j <= i {
				got, err := os.ReadFile(aside(state, j))
				require.NoError(t, err)
				assert.Equal(t, before, got)
			}
		}
	}
	for i := range maxAside {
		require.NoError(t, os.WriteFile(aside(state, i), nil, 0o600))
	}
	require.NoError(t, os.WriteFile(state, nil, 0o600))
	c := configure(t, args...)
	assert.ErrorContains(t, Run(c, slog.New(slog.DiscardHandler), Hooks{}), "cannot be put aside: "+state+".bad to "+state+".bad.99 are there already; want fewer")
}

// aside is the name of the file that is put aside after i others.
func aside(state string, i int) string {
	if i == 0 {
		return state + ".bad"
	}
	return fmt.Sprintf("%s.bad.%d", state, i)
}

// TestState_TwoProcesses: the second one does not start, and says who has the file; also if it comes by a link. What a process
// has left behind that was killed does not matter.
func TestState_TwoProcesses(t *testing.T) {
	dir := t.TempDir()
	state, link := filepath.Join(dir, "state"), filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("state", link)) // to nothing yet
	require.NoError(t, os.WriteFile(state+".lock", []byte("1"), 0o600))
	for _, left := range []string{".123.tmp", ".tmp", ".x.tmp"} {
		require.NoError(t, os.WriteFile(state+left, nil, 0o600))
	}
	rules := rulesFile(t, someRules)
	r := start(t, "--rules", rules, "--state", link, "--manual-clock")
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	for _, name := range []string{state, link} {
		err := Run(configure(t, "--rules", rules, "--state", name), slog.New(slog.DiscardHandler), Hooks{})
		assert.EqualError(t, err, fmt.Sprintf("--state: %s: process %d uses it, and they would overwrite each other's counts; want a file for each process", state, os.Getpid()))
	}
	r.end()
	to, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, "state", to, "the link stays")
	r = start(t, "--rules", rules, "--state", state, "--manual-clock")
	assert.Equal(t, 0, remaining(t, r.dial(), "two"))
	r.end()
	var names []string
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"link", "state", "state.tmp", "state.x.tmp"}, names, "foreign files stay")

	require.NoError(t, os.Symlink("b", filepath.Join(dir, "a")))
	require.NoError(t, os.Symlink("a", filepath.Join(dir, "b")))
	err = Run(configure(t, "--rules", rules, "--state", filepath.Join(dir, "a")), slog.New(slog.DiscardHandler), Hooks{})
	assert.ErrorContains(t, err, "too many links")
}

// TestState_LockMany: of processes that begin together, any number of times, one at a time has the file.
func TestState_LockMany(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var having, had atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for had.Load() < 200 {
				f, err := openState(state)
				if err != nil {
					assert.ErrorContains(t, err, "uses it")
					continue
				}
				assert.EqualValues(t, 1, having.Add(1))
				had.Add(1)
				having.Add(-1)
				f.close()
			}
		})
	}
	all.Wait()
}

// TestState_OtherKeys: a domain that has max_keys for the first time goes on counting; one that cannot is named.
func TestState_OtherKeys(t *testing.T) {
	state, file := filepath.Join(t.TempDir(), "state"), rulesFile(t, someRules)
	args := []string{"--rules", file, "--state", state, "--manual-clock"}
	for i, options := range []string{"", "\nsluice: {max_keys: 100}", "\nsluice: {max_keys: 200, overflow: deny-new}", ""} {
		write(t, file, strings.Replace(someRules, "domain: d", "domain: d"+options, 1))
		r := start(t, args...)
		assert.Equal(t, 999_999-i, remaining(t, r.dial(), "day"))
		assert.Empty(t, r.log.Problems())
		r.end()
	}
	write(t, file, strings.Replace(someRules, "domain: d", "domain: d\nsluice: {overflow: deny-new}", 1))
	r := start(t, args...)
	assert.Equal(t, 999_999, remaining(t, r.dial(), "day"))
	r.oneProblem("counts begin at 0 where max_keys or overflow is new", "domains=[d]")
}

func TestState_CannotBeWrittenAtTheEnd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.Mkdir(dir, 0o755))
	r := start(t, "--rules", rulesFile(t, someRules), "--state", filepath.Join(dir, "state"))
	require.NoError(t, os.RemoveAll(dir))
	r.signal(r.stop)
	require.ErrorContains(t, r.ended(), "writing the state: ")
}
