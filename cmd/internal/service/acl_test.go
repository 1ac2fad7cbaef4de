package service

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// everyRule has what makes the store run something else: each algorithm, blocks, steps, limits of what is in flight.
const everyRule = `
domain: d
descriptors:
- {key: counter, rate_limit: {unit: minute, requests_per_unit: 50}}
- {key: fixed, rate_limit: {unit: minute, requests_per_unit: 50, algorithm: fixed-window}}
- {key: sliding, rate_limit: {unit: minute, requests_per_unit: 50, algorithm: sliding-window}}
- {key: log, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding-log}}
- {key: gcra, rate_limit: {unit: minute, requests_per_unit: 50, algorithm: gcra}}
- {key: bucket, rate_limit: {unit: minute, requests_per_unit: 50, algorithm: token-bucket}}
- {key: leaky, rate_limit: {unit: minute, requests_per_unit: 50, algorithm: leaky-bucket}}
- {key: block, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: gcra, block_for: 1m}}
- {key: flight, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: in-flight}}
- {key: blocklog, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding-log, block_for: 1m}}
- {key: then, rate_limit: {unit: minute, requests_per_unit: 3, name: plan, then: more}}
- {key: then, value: more, rate_limit: {unit: minute, requests_per_unit: 3, name: more}}
`

// pageRights are the words of the list of rights in FLEET.md: those of keys and channels, and commands.
func pageRights(t *testing.T) (keys, commands []string) {
	page, err := os.ReadFile("../../sluiced/FLEET.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`ACL SETUSER sluice on >PASSWORD resetkeys resetchannels ([^\n]*)`).FindStringSubmatch(strings.ReplaceAll(string(page), "\\\n", " "))
	require.Len(t, line, 2, "FLEET.md has the list")
	for _, word := range strings.Fields(line[1]) {
		if word = strings.Trim(word, "'"); strings.HasPrefix(word, "+") {
			commands = append(commands, word[1:])
		} else if word != "-@all" {
			keys = append(keys, word)
		}
	}
	return keys, commands
}

// runAll makes two services use the store in all ways. It does not look at the answers.
func runAll(t *testing.T, admin *redis.Client, url string) (logs string) {
	file := rulesFile(t, everyRule)
	args := []string{"--redis", url, "--rules", file, "--store-budget", "1s"}
	a, b := start(t, args...), start(t, args...)
	for _, key := range []string{"counter", "fixed", "sliding", "log", "gcra", "bucket", "leaky", "block", "blocklog", "then"} {
		for _, r := range []*running{a, b} {
			conn := r.dial()
			call := func(hits uint64, refund bool, keys ...string) {
				req := &pb.RateLimitRequest{Domain: "d", HitsAddend: uint32(hits)}
				for _, k := range keys {
					d := descriptor(k, "x")
					d.IsNegativeHits = refund
					req.Descriptors = append(req.Descriptors, d)
				}
				_, _ = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req)
			}
			for range 4 {
				call(1, false, key)
			}
			call(1, false, key, "counter", "gcra")
			call(1, true, key)
		}
		hold := func(path, more string) {
			a.send("POST", "http", path, fmt.Sprintf(`{"domain":"d","id":"h-%s","descriptors":[{"entries":[{"key":"%s","value":"y"}]}]%s}`, key, key, more))
		}
		hold("/hold", `,"hits":3`)
		hold("/extend", `,"hits":1,"ttl":"1m"`)
		hold("/settle", `,"hits":2`)
		hold("/hold", `,"hits":3`)
		hold("/release", ``)
	}
	flight := `{"domain":"d","id":"f","descriptors":[{"entries":[{"key":"flight","value":"y"}]}]`
	for _, call := range [][2]string{{"/hold", `}`}, {"/extend", `,"hits":0,"ttl":"1m"}`}, {"/release", `}`}} {
		a.send("POST", "http", call[0], flight+call[1])
	}
	conn := a.dial()
	logged := func(refund bool) {
		d := descriptor("log", "z")
		d.IsNegativeHits = refund
		_, _ = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{d}})
	}
	for _, refund := range []bool{false, false, true, true} {
		logged(refund)
	}
	for _, key := range []string{"log", "counter"} {
		body := strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"` + key + `","value":"x"}]}]}`)
		resp, err := client.Post("http://"+a.addresses["debug"].String()+"/reset", "application/json", body)
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		_ = resp.Body.Close()
	}
	servetest.Eventually(t, "a hold that has lapsed is found", func() bool {
		a.send("POST", "http", "/hold", `{"domain":"d","ttl":"1ms","descriptors":[{"entries":[{"key":"gcra","value":"lapses"}]}]}`)
		return strings.Contains(admin.Info(t.Context(), "commandstats").Val(), "cmdstat_hmget:") || strings.Contains(a.log.String(), "NOPERM")
	})
	for range 200 { // hot enough for a lease
		_, _ = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), one("counter", "hot"))
	}
	write(t, file, strings.ReplaceAll(everyRule, "50", "60"))
	a.waitFor("generation 2, ")
	servetest.Eventually(t, "the replicas know of each other, and refunds", func() bool {
		_, metrics := a.get("metrics", "/metrics")
		return strings.Contains(metrics, `sluice_store_replicas{limiter="redis"} 2`) || strings.Contains(a.log.String(), "NOPERM")
	})
	a.end()
	b.end()
	return a.log.String() + b.log.String()
}

// TestServe_ACL: the rights that FLEET.md lists are those that the service uses, all of them and no others.
func TestServe_ACL(t *testing.T) {
	server := servers.StartRedis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer admin.Close()
	keys, commands := pageRights(t)
	grant := func(rights ...string) {
		words := []any{"ACL", "SETUSER", "sluice", "reset", "on", ">pw", "resetkeys", "resetchannels", "-@all"}
		for _, k := range keys {
			words = append(words, k)
		}
		for _, c := range rights {
			words = append(words, "+"+c)
		}
		require.NoError(t, admin.Do(t.Context(), words...).Err())
	}
	refused := func() (out []string) {
		entries, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
		require.NoError(t, err)
		for _, e := range entries {
			out = append(out, fmt.Sprint(e))
		}
		return out
	}
	grant(commands...)
	require.NoError(t, admin.Do(t.Context(), "CONFIG", "RESETSTAT").Err())
	logs := runAll(t, admin, "redis://sluice:pw@"+server.Addr)
	assert.Empty(t, refused())
	assert.NotContains(t, logs, "NOPERM")
	stats, err := admin.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	var used []string
	for _, m := range regexp.MustCompile(`(?m)^cmdstat_([a-z|]+):`).FindAllStringSubmatch(stats, -1) {
		if !slices.Contains([]string{"hello", "auth", "config|resetstat", "config", "acl|log", "acl|setuser", "acl", "info", "client|setinfo", "client"}, m[1]) {
			used = append(used, m[1])
		}
	}
	slices.Sort(used)
	slices.Sort(commands)
	assert.Equal(t, used, commands, "FLEET.md lists what is used")
}
