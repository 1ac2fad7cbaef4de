package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// ofKind is the document of a kind and a name.
func ofKind(t *testing.T, docs []map[string]any, kind, name string) map[string]any {
	t.Helper()
	for _, d := range docs {
		if d["kind"] == kind && at(t, d, "metadata", "name") == name {
			return d
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

func texts(list any) (out []string) {
	for _, v := range list.([]any) {
		out = append(out, v.(string))
	}
	return out
}

// TestDeploy_KubernetesFleet starts what the manifest says: three replicas that count together, in a store that
// takes the password of the Secret only.
func TestDeploy_KubernetesFleet(t *testing.T) {
	binary, err := servers.FindRedis()
	if err != nil {
		t.Skip(err)
	}
	docs := documents(t, "kubernetes/fleet.yaml")
	store := at(t, ofKind(t, docs, "StatefulSet", "sluice-valkey"), "spec", "template", "spec", "containers").([]any)[0]
	address := startStore(t, binary, texts(at(t, store, "args"))[0])

	deployment := ofKind(t, docs, "Deployment", "sluice")
	require.Equal(t, 3, at(t, deployment, "spec", "replicas"))
	container := at(t, deployment, "spec", "template", "spec", "containers").([]any)[0]
	secret := map[string]any{"name": "REDIS_AUTH", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "sluice-store", "key": "REDIS_AUTH"}}}
	assert.Equal(t, []any{secret}, at(t, container, "env"))
	assert.Equal(t, []any{secret}, at(t, store, "env"))
	args := texts(at(t, container, "args"))
	assert.Equal(t, []string{"redis://sluice-valkey:6379"}, parseServe(t, args).Store.Redis.URLs)
	ofKind(t, docs, "Service", "sluice-valkey")
	rules := map[string]string{}
	for name, text := range at(t, ofKind(t, docs, "ConfigMap", "sluice-rules"), "data").(map[string]any) {
		rules[name] = text.(string)
	}
	dir := servetest.Files(t, rules)
	for i, a := range args {
		args[i] = strings.NewReplacer("/etc/sluice/rules", dir, "redis://sluice-valkey:6379", "redis://"+address).Replace(a)
	}
	admitted := 0
	for range 3 {
		// The answers are what this is about, and not whether a busy machine gives them within 5 ms.
		p := startServe(t, []string{"REDIS_AUTH=" + storePassword}, append(args[1:], "--log", "text", "--store-budget", "1m", "--leases=false", "--on-store-failure", "closed")...)
		for range 4 {
			code, _, stderr := p.askFor("-d", "web", "path=/login,remote_address=192.0.2.1", "--timeout", "1m")
			require.Empty(t, stderr)
			if code == cli.ExitOK {
				admitted++
			}
		}
		assert.NotContains(t, p.log.String(), storePassword)
	}
	assert.GreaterOrEqual(t, admitted, 5)
	assert.LessOrEqual(t, admitted, 10, "12 calls, which a change of the minute can split: 5 a minute for all replicas")
}

const storePassword = "3f6a77c1"

// startStore runs the command of the store's container, with a port and a folder of the test.
func startStore(t *testing.T, binary, script string) (address string) {
	t.Helper()
	free, err := servers.FreePort()
	require.NoError(t, err)
	port := strconv.Itoa(free)
	address = net.JoinHostPort("127.0.0.1", port)
	require.Contains(t, script, "valkey-server - ")
	require.NotContains(t, script, "--requirepass", "others on the node can read arguments")
	script = strings.Replace(script, "valkey-server - ", binary+" - --bind 127.0.0.1 --port "+port+" --dir "+t.TempDir()+" ", 1)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "REDIS_AUTH="+storePassword)
	var log servetest.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	with := redis.NewClient(&redis.Options{Addr: address, Password: storePassword})
	defer with.Close()
	servetest.Eventually(t, "the store answers", func() bool { return with.Ping(context.Background()).Err() == nil })
	without := redis.NewClient(&redis.Options{Addr: address})
	defer without.Close()
	assert.ErrorContains(t, without.Ping(context.Background()).Err(), "NOAUTH")
	policy := with.ConfigGet(context.Background(), "maxmemory-policy").Val()
	assert.Equal(t, map[string]string{"maxmemory-policy": "noeviction"}, policy)
	return address
}
