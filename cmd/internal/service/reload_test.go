package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// config is what /rlconfig says.
func (r *running) config() string {
	r.Helper()
	_, body := r.get("debug", "/rlconfig")
	return body
}

func (r *running) waitFor(text string) {
	r.Helper()
	servetest.Eventually(r.T, "/rlconfig has "+text, func() bool { return strings.Contains(r.config(), text) })
}

func TestReload_CountsStay(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, someRules)
	r := start(t, "--rules", filepath.Dir(file), "--manual-clock")
	conn := r.dial()
	assert.Equal(t, 1, remaining(t, conn, "two"))
	assert.Equal(t, 2, remaining(t, conn, "own"))
	write(t, file, strings.NewReplacer("requests_per_unit: 2", "requests_per_unit: 9").Replace(someRules))
	r.waitFor("requests_per_unit=9")
	assert.Equal(t, 7, remaining(t, conn, "two"))
	assert.Equal(t, 1, remaining(t, conn, "own"))

	require.NoError(t, os.Remove(file))
	r.waitFor("generation 3, ")
	assert.Nil(t, ask(t, conn, one("two", "x")).Statuses[0].CurrentLimit, "a directory without rules limits nothing")
	assert.Contains(t, r.log.String(), "there are no rules: nothing is limited")
}

func TestReload_AllOrNone(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, someRules)
	other := write(t, filepath.Join(filepath.Dir(file), "b.yaml"), "domain: e\n")
	r := start(t, "--rules", filepath.Dir(file), "--manual-clock")
	conn := r.dial()
	write(t, other, "domain: e\ndescriptors:\n- {key: k, rate_limit: {unit: moon, requests_per_unit: 1}}\n")
	r.waitFor("the last load was refused")
	write(t, file, strings.NewReplacer("requests_per_unit: 2", "requests_per_unit: 9").Replace(someRules))
	servetest.Eventually(t, "a second refusal", func() bool {
		_, body := r.get("metrics", "/metrics")
		return strings.Contains(body, "\nsluice_config_reloads_total{result=\"error\"} 2\n") &&
			strings.Contains(body, "\nsluice_config_last_reload_successful 0\n")
	})
	config := r.config()
	assert.Contains(t, config, other+":3:31: ")
	assert.Contains(t, config, "d.two: unit=MINUTE requests_per_unit=2")
	assert.Contains(t, config, "generation 1, ")
	assert.Contains(t, r.log.String(), other+":3:31: ")
	assert.Equal(t, 1, remaining(t, conn, "two"), "the old rules stay")
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 200, code)

	write(t, other, "domain: e\n")
	r.waitFor("generation 2, ")
	assert.NotContains(t, r.config(), "refused")
	_, body := r.get("metrics", "/metrics")
	assert.Contains(t, body, "\nsluice_config_last_reload_successful 1\n")
	assert.Equal(t, 7, remaining(t, conn, "two"))
}

// TestReload_ConfigMap does what a kubelet does: two files change at once, by one link.
func TestReload_ConfigMap(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	version := func(name, limit string) {
		write(t, filepath.Join(dir, name, "a.yaml"), "domain: d\ndescriptors:\n- {key: two, rate_limit: {unit: minute, requests_per_unit: "+limit+"}}\n")
		write(t, filepath.Join(dir, name, "b.yaml"), "domain: e\ndescriptors:\n- {key: two, rate_limit: {unit: minute, requests_per_unit: "+limit+"}}\n")
		require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..2026_01", "2")
	for _, name := range []string{"a.yaml", "b.yaml"} {
		require.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	r := start(t, "--rules", dir)
	version("..2026_02", "9")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "..2026_01")))
	r.waitFor("generation 2, ")
	config := r.config()
	assert.Contains(t, config, "d.two: unit=MINUTE requests_per_unit=9")
	assert.Contains(t, config, "e.two: unit=MINUTE requests_per_unit=9")
}

func TestReload_Signal(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules))
	r.signal(r.reload)
	r.waitFor("generation 2, ")
	r.signal(r.reload)
	r.waitFor("generation 3, ")
}

func TestReload_WarningsAreNoRefusal(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, someRules)
	write(t, filepath.Join(filepath.Dir(file), "notes.txt"), "x")
	r := start(t, "--rules", filepath.Dir(file))
	write(t, file, "domain: d\ndescriptors:\n- {key: two, rate_limit: {unit: minute}}\n")
	r.waitFor("generation 2, ")
	assert.Contains(t, r.log.String(), file+":3:26: warning: d.two: requests_per_unit is missing")
	assert.Contains(t, r.log.String(), "notes.txt")
	assert.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, r.dial(), one("two", "x")).OverallCode)

	file = rulesFile(t, someRules)
	strict := start(t, "--rules", file, "--strict")
	write(t, file, "domain: d\ndescriptors:\n- {key: two, rate_limit: {unit: minute}}\n")
	strict.waitFor("the last load was refused")
}
