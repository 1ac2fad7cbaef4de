package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/cmd/internal/service"
)

const deployDir = "../../deploy"

// documents reads the documents of a YAML file.
func documents(t *testing.T, name string) (out []map[string]any) {
	t.Helper()
	f, err := os.Open(filepath.Join(deployDir, name))
	require.NoError(t, err)
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var doc map[string]any
		err := d.Decode(&doc)
		if err == io.EOF {
			return out
		}
		require.NoError(t, err)
		out = append(out, doc)
	}
}

// at goes down in what YAML has made: by key, or into the first of a list.
func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, key := range path {
		if list, ok := v.([]any); ok {
			v = list[0]
		}
		m, ok := v.(map[string]any)
		require.True(t, ok, key)
		require.Contains(t, m, key)
		v = m[key]
	}
	return v
}

// parseServe reads the arguments of a `sluiced serve`.
func parseServe(t *testing.T, args []string) *service.Config {
	t.Helper()
	require.Equal(t, "serve", args[0])
	c := new(service.Config)
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(f)
	require.NoError(t, f.Parse(args[1:]))
	require.Empty(t, f.Args())
	require.NoError(t, c.Check())
	return c
}

// TestDeploy_Kubernetes starts what the manifest says, with its rules.
func TestDeploy_Kubernetes(t *testing.T) {
	docs := documents(t, "kubernetes/sluice.yaml")
	require.Len(t, docs, 3)
	rules := map[string]string{}
	for name, text := range at(t, docs[0], "data").(map[string]any) {
		rules[name] = text.(string)
	}
	dir := servetest.Files(t, rules)

	container := at(t, docs[1], "spec", "template", "spec", "containers").([]any)[0]
	var args []string
	for _, a := range at(t, container, "args").([]any) {
		args = append(args, a.(string))
	}
	c := parseServe(t, args)
	assert.Equal(t, at(t, container, "volumeMounts", "mountPath"), c.Rules[0])
	grace := at(t, docs[1], "spec", "template", "spec", "terminationGracePeriodSeconds").(int)
	assert.Greater(t, grace, int(c.Drain.Seconds())+10, "or the kubelet kills what drains")
	ports := map[string]any{}
	for _, p := range at(t, container, "ports").([]any) {
		ports[at(t, p, "name").(string)] = at(t, p, "containerPort")
	}
	assert.Equal(t, map[string]any{"grpc": 8081, "http": 8080, "metrics": 9090}, ports)
	assert.Equal(t, ":8081 :8080 :9090", c.GRPC+" "+c.HTTP+" "+c.Metrics)

	p := startServe(t, nil, "--rules", dir, "--manual-clock")
	resp, err := plainGet("http://" + p.addresses["http"] + at(t, container, "readinessProbe", "httpGet", "path").(string))
	require.NoError(t, err)
	assert.Equal(t, "OK", resp)
	code, _, _ := p.askFor("-d", "web", "path=/login,remote_address=192.0.2.1", "--hits", "6")
	assert.Equal(t, cli.ExitFailed, code)
}

func TestDeploy_Systemd(t *testing.T) {
	for _, name := range []string{"sluice.service", "sluice-fleet.service"} {
		data, err := os.ReadFile(filepath.Join(deployDir, "systemd", name))
		require.NoError(t, err)
		start := regexp.MustCompile(`(?m)^ExecStart=\S+/sluiced (.*)$`).FindStringSubmatch(string(data))
		require.NotNil(t, start)
		c := parseServe(t, strings.Fields(start[1]))
		if name == "sluice.service" {
			assert.Equal(t, "/var/lib/sluice/counts", c.State, "StateDirectory=sluice")
		} else {
			checkStoreEnvironment(t, string(data), strings.Fields(start[1]))
		}

		analyze := servetest.Installed(t, "systemd-analyze", "apt-get install systemd")
		binary, err := os.Executable()
		require.NoError(t, err)
		dir := servetest.Files(t, map[string]string{name: strings.ReplaceAll(string(data), "/usr/local/bin/sluiced", binary)})
		out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, name)).CombinedOutput()
		assert.NoError(t, err)
		for line := range strings.Lines(string(out)) { // units of the machine can be odd, too
			assert.NotContains(t, line, name, line)
		}
	}
}

// checkStoreEnvironment reads the variables that a unit shows as those of its file.
func checkStoreEnvironment(t *testing.T, unit string, args []string) {
	t.Helper()
	shown := regexp.MustCompile(`(?m)^(?:#   |Environment=)([A-Z_]+=\S+)$`).FindAllStringSubmatch(unit, -1)
	var variables []string
	for _, m := range shown {
		variables = append(variables, m[1])
	}
	c := new(service.Config)
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(f)
	require.NoError(t, f.Parse(args[1:]))
	_, err := c.Environment(f, []string{"BACKEND_TYPE=redis"})
	require.ErrorContains(t, err, "REDIS_URL", "without the file it does not start, and counts nothing alone")
	ignored, err := c.Environment(f, variables)
	require.NoError(t, err)
	assert.Empty(t, ignored)
	require.NoError(t, c.Check())
	assert.Equal(t, []string{"redis.example.org:6379"}, c.Store.Redis.URLs)
	assert.Equal(t, "PASSWORD", c.Store.Redis.Auth)
	assert.True(t, c.Store.Redis.TLS)
}

func plainGet(url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// TestDeploy_MetricsExist: what the dashboard and the alerts ask for is what the service tells, with a store or
// without, or limiters and tiers in other programs do.
func TestDeploy_MetricsExist(t *testing.T) {
	p := startServe(t, nil, "--rules", "../../examples/rules", "--manual-clock")
	p.askFor("-d", "api", "client=ann")
	for _, path := range []string{"hold", "settle"} {
		resp, err := http.Post("http://"+p.addresses["http"]+"/"+path, "application/json", strings.NewReader(`{"domain":"api","id":"a","hits":1,"descriptors":[{"entries":[{"key":"client","value":"ann"}]}]}`))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	exposition, err := plainGet("http://" + p.addresses["metrics"] + "/metrics")
	require.NoError(t, err)
	stored := startServe(t, nil, "--rules", "../../examples/rules", "--redis", "127.0.0.1:1", "--redis-per-second", "127.0.0.1:1")
	store, err := plainGet("http://" + stored.addresses["metrics"] + "/metrics")
	require.NoError(t, err)
	exposition += store
	dashboard, err := os.ReadFile(filepath.Join(deployDir, "grafana/sluice.json"))
	require.NoError(t, err)
	ofStore := regexp.MustCompile(`(?m)^sluice_store_[a-z_]+`).FindAllString(store, -1)
	require.NotEmpty(t, ofStore)
	for _, metric := range ofStore {
		assert.Contains(t, string(dashboard), metric+"{", "the dashboard shows what the service tells of its store")
	}
	for _, limiter := range []string{"redis", "redis-per-second"} { // as the dashboard has it
		assert.Contains(t, store, `limiter="`+limiter+`"`)
	}
	for _, file := range []string{"limiters.prom", "queues.prom", "tiers.prom"} {
		data, err := os.ReadFile(filepath.Join("../../internal/test/expositions/testdata", file))
		require.NoError(t, err)
		exposition += string(data)
	}
	name := regexp.MustCompile(`\b(sluice|process|go)_[a-z_]+[a-z]`)
	label := regexp.MustCompile(`\b(sluice_[a-z_]+)\{([^}]*)\}`)
	for _, file := range []string{"grafana/sluice.json", "prometheus/alerts.yaml", "prometheus/alerts_test.yaml"} {
		data, err := os.ReadFile(filepath.Join(deployDir, file))
		require.NoError(t, err)
		found := name.FindAllString(string(data), -1)
		require.NotEmpty(t, found, file)
		for _, metric := range found {
			assert.Regexp(t, `(?m)^`+metric+`[{ ]`, exposition, file)
		}
		for _, m := range label.FindAllStringSubmatch(strings.ReplaceAll(string(data), `\"`, `"`), -1) {
			for _, l := range regexp.MustCompile(`([a-z_]+)=`).FindAllStringSubmatch(m[2], -1) {
				if l[1] == "instance" || l[1] == "job" { // Prometheus' own
					continue
				}
				assert.Regexp(t, `(?m)^`+m[1]+`\{.*\b`+l[1]+`=`, exposition, file)
			}
		}
	}
	for _, outcome := range []string{"within", "near", "over", "shadow"} {
		assert.Contains(t, exposition, `outcome="`+outcome+`"`)
	}
}

// TestDeploy_Dashboard: Grafana takes what is JSON, and has an expression in every panel.
func TestDeploy_Dashboard(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(deployDir, "grafana/sluice.json"))
	require.NoError(t, err)
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, AllValue string }
		}
	}
	require.NoError(t, json.NewDecoder(bytes.NewReader(data)).Decode(&dashboard))
	for _, v := range dashboard.Templating.List {
		if v.Name == "instance" {
			require.Empty(t, v.AllValue, "all instances are those of sluice: panels ask for the memory of processes, which others have, too")
		}
	}
	ids := map[int]bool{}
	promtool, noPromtool := exec.LookPath("promtool")
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		assert.Equal(t, p.Type != "row", len(p.Targets) > 0, p.Title)
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m").Replace(target.Expr)
			text, err := json.Marshal(expr)
			require.NoError(t, err)
			rules.WriteString("  - {record: x" + ":y" + ", expr: " + string(text) + "}\n")
		}
	}
	require.Greater(t, len(ids), 10)
	if noPromtool != nil {
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	file := filepath.Join(servetest.Files(t, map[string]string{"rules.yaml": rules.String()}), "rules.yaml")
	out, err := exec.Command(promtool, "check", "rules", "--lint=none", file).CombinedOutput()
	assert.NoError(t, err, string(out))
}

func TestDeploy_Alerts(t *testing.T) {
	promtool := servetest.Installed(t, "promtool", "apt-get install prometheus")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(deployDir, "prometheus")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, string(out))
	}
}
