package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// naiveClass is the rule of path classes, as the help has it.
func naiveClass(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		m := regexp.MustCompile(`^(\d+|[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}|[\da-fA-F]{8,})(\.[a-zA-Z].*)?$`).FindStringSubmatch(s)
		if m != nil && strings.ContainsAny(m[1], "0123456789-") {
			segments[i] = "{id}" + m[2]
		}
	}
	return strings.Join(segments, "/")
}

// TestKey_RealLogs: real logs decided by keys, as a table of counts decides what this test reads by itself.
func TestKey_RealLogs(t *testing.T) {
	classes := map[string]bool{}
	for _, name := range []string{"elastic-apache-2015-05.log.gz", "basjes-2015-10.jsonl.gz", "traefik-2021-12.jsonl"} {
		lines := readSeen(t, name)
		for key, of := range map[string]func(seen) []string{
			"path-class":        func(s seen) []string { return []string{classOf(s)} },
			"client,path-class": func(s seen) []string { return []string{clientName(s.client), classOf(s)} },
			"agent,method":      func(s seen) []string { return []string{strings.TrimPrefix(s.agent, "-"), s.method} },
		} {
			type window struct {
				key  string
				hour int64
			}
			counts, keys := map[window]int{}, map[string]int64{}
			now, denied, keyless := time.Time{}, int64(0), int64(0)
			for _, s := range lines {
				parts := of(s)
				if slices.Contains(parts, "") {
					keyless++
					continue
				}
				if s.at.After(now) {
					now = s.at
				}
				w := window{fmt.Sprintf("%q", parts), now.Unix() / 3600}
				keys[w.key]++
				if counts[w]++; counts[w] > 2 {
					denied++
				}
				if strings.Contains(parts[len(parts)-1], "{id}") {
					classes[parts[len(parts)-1]] = true
				}
			}
			out := replayJSON(t, nil, filepath.Join(dataDir, "access", name), "--key", key, "--rule", "fixed-window 2/h")
			assert.Equal(t, denied, out.Rules[0].Denied, "%s %s", name, key)
			assert.EqualValues(t, len(keys), out.Log.Clients, "%s %s", name, key)
			assert.Equal(t, keyless, out.Log.Keyless, "%s %s", name, key)
			assert.Equal(t, key, out.Log.Key)
		}
	}
	assert.NotEmpty(t, classes, "some paths have ids")
}

// classOf is the class of a path. It is not that of a CONNECT, which has none.
func classOf(s seen) string {
	if s.method == "CONNECT" {
		return ""
	}
	return naiveClass(plainPath(strings.Replace(s.target, "//favicon", "/favicon", 1)))
}

// clientName is a client as the command names it: an address in IPv6 is a network, and these logs have one in each.
func clientName(text string) string {
	if strings.Contains(text, ":") {
		return strings.Join(strings.Split(text, ":")[:4], ":")
	}
	return text
}

// TestKey_Recommend: the limits are those of keys, and hold for a replay by the same ones.
func TestKey_Recommend(t *testing.T) {
	code, stdout, stderr := execute(nil, "recommend", "--key", "client,method", "--clients", "99%")
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Contains(t, stdout, "  a client is what has the same client, method\n")
	assert.Contains(t, stdout, "http:\n  - actions: [{remote_address: {}}, {request_headers: {header_name: ':method', descriptor_key: method}}]\n")
	assert.NotContains(t, stdout, "limit_req")
	code, stdout, stderr = execute(nil, "recommend", "--key", "client,path-class")
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Contains(t, stdout, "\nGo\n")
	assert.NotContains(t, stdout, "domain: web")
	code, _, stderr = execute(nil, "recommend", "--key", "method", "--check", "../../testdata/nowhere.log")
	assert.Equal(t, cli.ExitFailed, code, stderr)
}

// TestKey_ServeRule: the rule for sluiced serve decides the log as the limit does.
func TestKey_ServeRule(t *testing.T) {
	for _, key := range []string{"path", "client,path", "client,agent,method"} {
		code, rule, stderr := execute(nil, "recommend", "--key", key, "--clients", "90%", "--output", "serve")
		require.Equal(t, cli.ExitOK, code, stderr)
		m := regexp.MustCompile(`requests_per_unit: (\d+), algorithm: gcra, burst: (\d+)`).FindStringSubmatch(rule)
		require.NotNil(t, m, rule)
		unit := regexp.MustCompile(`unit: (\w)`).FindStringSubmatch(rule)[1]
		byKey := replayJSON(t, nil, "--key", key, "--rule", fmt.Sprintf("gcra %s/%s burst %s", m[1], unit, m[2]))
		byRules := replayJSON(t, nil, "--rules", servetest.Files(t, map[string]string{"web.yaml": rule}))
		assert.Equal(t, byKey.Rules[0].Denied, byRules.Rules[0].Denied, "%s\n%s", key, rule)
		assert.Positive(t, byKey.Rules[0].Denied, key)
	}
}

func TestKey_Refuses(t *testing.T) {
	rules := servetest.Files(t, map[string]string{"web.yaml": "domain: web\n"})
	for want, args := range map[string][]string{
		`key "shoe" has the part "shoe": want client, path-class, `:                                              {"replay", "--key", "shoe"},
		`key "client," has the part "": want `:                                                                   {"recommend", "--key", "client,"},
		"--key says what limits count by, and --rules say it themselves: want one of the two, or --descriptor\n": {"replay", "--key", "method", "--rules", rules},
		"--output nginx has no words for --key method: want text, json or go\n":                                  {"recommend", "--key", "method", "--output", "nginx"},
		"--output serve has no words for --key client,path-class: want text, json or go\n":                       {"recommend", "--key", "client,path-class", "--output", "serve"},
	} {
		code, stdout, stderr := execute(nil, args...)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want)
	}
	code, _, stderr := execute(nil, "recommend", "--key", "client,host")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "key client,host: format combined has no host; it has client, path-class, path, method, user, agent, status, status-class, and as field:NAME ")
}
