package main

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// seen is a line of a log as this test reads it, without the reader of logs.
type seen struct {
	at                            time.Time
	client, method, target, agent string
}

var combinedLine = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) HTTP/[^"]*" \d+ \S+ "[^"]*" "([^"]*)"?`)

// readSeen reads a log of the shared data.
func readSeen(t *testing.T, name string) (lines []seen) {
	t.Helper()
	f, err := os.Open(filepath.Join(dataDir, "access", name))
	if err != nil {
		t.Skipf("the logs are not here: %v", err)
	}
	defer f.Close()
	in := io.Reader(f)
	if strings.HasSuffix(name, ".gz") {
		in, err = gzip.NewReader(f)
		require.NoError(t, err)
	}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var s seen
		var stamp string
		if text := scanner.Text(); text[0] != '{' {
			m := combinedLine.FindStringSubmatch(text)
			require.NotNil(t, m, text)
			s, stamp = seen{client: m[1], method: m[3], target: m[4], agent: m[5]}, m[2]
		} else {
			var v map[string]any
			require.NoError(t, json.Unmarshal(scanner.Bytes(), &v))
			of := func(name string) string { text, _ := v[name].(string); return text }
			s = seen{client: of("remote_ip") + of("ClientHost"), method: of("RequestMethod"), target: of("RequestPath"), agent: of("agent") + of("request_User-Agent")}
			stamp = of("StartUTC")
			if stamp == "" {
				stamp = of("time")
				if words := strings.Split(of("request"), " "); len(words) == 3 {
					s.method, s.target = words[0], words[1]
				}
			}
		}
		s.at, err = time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			s.at, err = time.Parse("02/Jan/2006:15:04:05 -0700", stamp)
		}
		require.NoError(t, err)
		lines = append(lines, s)
	}
	require.NoError(t, scanner.Err())
	return lines
}

// plainPath is what rules compare.
func plainPath(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		target, _, _ = strings.Cut(target, "?")
		return path.Clean("/" + target)
	}
	return path.Clean("/" + u.Path)
}

// TestReplay_RealRequests: methods, paths and user agents of real logs are those that this test finds
// by itself, and a limit by path and client decides every line as a table of counts does.
func TestReplay_RealRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
domain: web
http:
- actions: [{path: {}}, {remote_address: {}}]
- actions: [{request_headers: {header_name: ":method", descriptor_key: method}}]
- actions: [{request_headers: {header_name: user-agent, descriptor_key: agent}}]
descriptors:
- {key: path, descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 2}}]}
- {key: method, detailed_metric: true, rate_limit: {unlimited: false, unit: year, requests_per_unit: 1000000}}
- {key: agent, value: '*bot*', rate_limit: {unit: year, requests_per_unit: 1000000}}
`), 0o600))
	for _, name := range []string{"elastic-apache-2015-05.log.gz", "basjes-2015-10.jsonl.gz", "traefik-2021-12.jsonl"} {
		t.Run(name, func(t *testing.T) {
			lines := readSeen(t, name)
			type window struct {
				path, client string
				hour         int64
			}
			counts, methods, bots := map[window]int{}, map[string]int64{}, int64(0)
			var decisions strings.Builder
			now, denied := time.Time{}, int64(0)
			for _, s := range lines {
				if s.at.After(now) {
					now = s.at
				}
				if s.method != "" {
					methods["web.method_"+s.method]++
				}
				if strings.Contains(s.agent, "bot") {
					bots++
				}
				client := s.client
				if strings.Contains(client, ":") {
					client = strings.Join(strings.Split(client, ":")[:2], ":") // these are alone in their networks
				}
				w := window{plainPath(s.target), client, now.Unix() / 3600}
				if counts[w]++; s.target != "" && counts[w] > 2 {
					denied++
					decisions.WriteByte('D')
				} else {
					decisions.WriteByte('A')
				}
			}
			require.Positive(t, denied)
			require.Greater(t, len(methods), 0)

			out := replayJSON(t, nil, filepath.Join(dataDir, "access", name), "--rules", file).Rules[0]
			assert.Equal(t, denied, out.Denied)
			assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(decisions.String()))), out.DecisionsSHA256)
			got := map[string]int64{}
			for _, l := range out.Limits {
				got[l.Rule] = l.Hits
			}
			assert.Equal(t, bots, got["web.agent_*bot*"])
			delete(got, "web.agent_*bot*")
			delete(got, "web.path.remote_address")
			assert.Equal(t, methods, got)
		})
	}
}
