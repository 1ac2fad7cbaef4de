package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/sluice/internal/servetest"
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
	for name, data := range map[string][]byte{
		"empty": {}, "truncated": good[:len(good)-1], "half": good[:len(good)/2], "flipped": flipped, "foreign": []byte("some other file"),
	} {
		require.NoError(t, os.WriteFile(state, data, 0o600))
		r := start(t, args...)
		assert.Equal(t, 1, remaining(t, r.dial(), "two"), name)
		r.oneProblem("the state cannot be read: it is put aside, and counts begin at 0", state+".bad")
		aside, err := os.ReadFile(state + ".bad")
		require.NoError(t, err)
		assert.Equal(t, data, aside, name)
		r.end()
	}
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
