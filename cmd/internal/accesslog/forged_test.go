package accesslog

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReader_ForgedLines: what clients write into fields of a log is read as a line of another format by nobody.
func TestReader_ForgedLines(t *testing.T) {
	const pairs = "x client_ip=9.9.9.9 time=2026-01-24T13:00:00Z y"
	istio := func(agent, address string) string {
		return `[2026-01-24T13:00:00.000Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 0 5 1 1 "-" "` + agent + `" "id" "host" "10.0.0.1:80" cluster 10.0.0.2:1 10.0.0.2:80 ` + address + `:1234 - -`
	}
	clf := "1.2.3.4" + record
	for name, c := range map[string]struct{ usual, forged string }{
		"quotes in an agent": {istio("curl", "1.2.3.4"), istio(`" `+pairs, "6.6.6.6")},
		"an error message": {clf, `2026/01/24 13:00:00 [error] 29#29: *1 open() "/usr/share/nginx/html/` + pairs +
			`" failed (2: No such file or directory), client: 6.6.6.6, server: localhost, request: "GET /x HTTP/1.1", host: "h"`},
		"no client":    {clf, "- - - [" + someTime + `] "GET / HTTP/1.1" 200 1 "-" "` + pairs + `"`},
		"a message":    {clf, `{"level":"warn","message":"9.9.9.9 - - [` + someTime + `] \"GET / HTTP/1.1\" 200 1"}`},
		"a host":       {"www.example.org:80 1.2.3.4 - - [" + someTime + `] "GET / HTTP/1.1" 200 1`, "9.9.9.9:80 a.client.example - - [" + someTime + `] "GET / HTTP/1.1" 200 1`},
		"a host alone": {"www.example.org 1.2.3.4 - - [" + someTime + `] "GET / HTTP/1.1" 200 1`, "9.9.9.9 a.client.example - - [" + someTime + `] "GET / HTTP/1.1" 200 1`},
		"an agent in JSON": {`{"remote_addr":"1.2.3.4","time":"2026-01-24T13:00:00Z","ua":"c"}`,
			`{"remote_addr":"6.6.6.6","time":"2026-01-24T13:00:00Z","ua":"\x22 ` + pairs + `"}`},
	} {
		log := strings.Repeat(c.usual+"\n", 3) + c.forged + "\n" + c.usual + "\n"
		clients, facts, err := readAll(t, strings.NewReader(log), Auto)
		require.NoError(t, err, name)
		assert.Equal(t, []string{"1.2.3.4", "1.2.3.4", "1.2.3.4", "1.2.3.4"}, clients, name)
		assert.EqualValues(t, 1, facts.Malformed, name)
	}
}

// TestTheClient: of a list the last address counts, and a name with a comma is a name.
func TestTheClient(t *testing.T) {
	for _, c := range []struct{ field, value, want string }{
		{"x_forwarded_for", "10.0.0.1, 192.0.2.1", "192.0.2.1"},
		{"x_forwarded_for", "anything, 192.0.2.1", "192.0.2.1"},
		{"xff", "anything, 192.0.2.1", "192.0.2.1"},
		{"x_forwarded_for", "192.0.2.1, anything", ""},
		{"x_forwarded_for", "192.0.2.1, -", ""},
		{"user", "10.0.0.1, 192.0.2.1", "192.0.2.1"},
		{"user", "Doe, John", "Doe, John"},
		{"user", "tenant,10.0.0.1", ""},
		{"user", " ann ", "ann"},
		{"user", "-", ""},
	} {
		client, err := theClient(c.field, []byte(c.value))
		assert.Equal(t, c.want, string(client), "%s %s", c.field, c.value)
		assert.Equal(t, c.want == "", err != nil, "%s %s", c.field, c.value)
	}
}
