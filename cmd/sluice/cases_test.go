package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

const casesDir = "../../../shared/cases"

// TestReplay_Cases has small logs from the field, of kinds that people have.
func TestReplay_Cases(t *testing.T) {
	if _, err := os.Stat(casesDir); err != nil {
		t.Skip("there is no ../shared/cases beside the checkout")
	}
	for name, c := range map[string]struct {
		args                        []string
		counted, clients, malformed int64
		keyless                     int64
	}{
		"log-cri-nginx.log":                {counted: 6, clients: 3},
		"log-vhost-forwarded-list.log":     {counted: 6, clients: 2},
		"log-errors-between.log":           {counted: 9, clients: 4, malformed: 6},
		"log-w3c-forwarded-column.log":     {args: []string{"--client-field", "X-Forwarded-For"}, counted: 6, clients: 3},
		"log-squid-native.log":             {counted: 6, clients: 3},
		"log-json-time-without-zone.jsonl": {args: []string{"--client-field", "ip", "--time-field", "ts"}, counted: 6, clients: 3},
		"log-json-list.jsonl":              {args: []string{"--client-field", "xff", "--time-field", "t"}, counted: 6, clients: 2},
		"log-ingress-nginx.jsonl":          {counted: 6, clients: 3},
		"log-ingress-nginx-old.log":        {args: []string{"--key", "user"}, counted: 3, clients: 1, keyless: 3},
		"log-docker-json-file.jsonl":       {counted: 6, clients: 3},
		"log-format-changes.log":           {counted: 30, clients: 3},
	} {
		t.Run(name, func(t *testing.T) {
			out := replayJSON(t, nil, append([]string{filepath.Join(casesDir, name), "--limit", "1/m"}, c.args...)...)
			assert.Equal(t, c.counted, out.Log.Counted)
			assert.Equal(t, c.clients, out.Log.Clients)
			assert.Equal(t, c.malformed, out.Log.Malformed)
			assert.Equal(t, c.keyless, out.Log.Keyless)
		})
	}
}

// TestReplay_CasePattern: a pattern that leaves out fields in quotes behind the client cannot tell where the client is, and says why.
func TestReplay_CasePattern(t *testing.T) {
	log := filepath.Join(casesDir, "log-proxy-manager.log")
	if _, err := os.Stat(log); err != nil {
		t.Skip("there is no ../shared/cases beside the checkout")
	}
	const upTo = `[$time_local] $cache $up $status - $request_method $scheme $host "$request_uri" [Client $remote_addr]`
	code, _, stderr := execute(nil, "replay", log, "--limit", "1/m", "--format", upTo+` $rest`)
	require.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "6 quotes where the format has 2")
	out := replayJSON(t, nil, log, "--limit", "1/m", "--format", upTo+` [Length $length] [Gzip $gzip] [Sent-to $upstream] "$http_user_agent" "$http_referer"`)
	assert.EqualValues(t, 6, out.Log.Counted)
	assert.EqualValues(t, 3, out.Log.Clients)
}
