package accesslog

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestPathClass has paths of one kind, and paths that only look alike.
func TestPathClass(t *testing.T) {
	for path, want := range map[string]string{
		"":             "",
		"/":            "/",
		"/users/123/x": "/users/{id}/x",
		"/users/0":     "/users/{id}",
		"/a/9b2e4f6a-1c3d-4e5f-8a9b-0c1d2e3f4a5b/c":  "/a/{id}/c",
		"/a/9B2E4F6A-1C3D-4E5F-8A9B-0C1D2E3F4A5B":    "/a/{id}",
		"/a/9b2e4f6a-1c3d-4e5f-8a9b-0c1d2e3f4a5":     "/a/9b2e4f6a-1c3d-4e5f-8a9b-0c1d2e3f4a5",
		"/a/9b2e4f6a-1c3d-4e5f-8a9b-0c1d2e3f4a5g":    "/a/9b2e4f6a-1c3d-4e5f-8a9b-0c1d2e3f4a5g",
		"/a/9b2e4f6a01c3d-4e5f-8a9b-0c1d2e3f4a5b":    "/a/9b2e4f6a01c3d-4e5f-8a9b-0c1d2e3f4a5b",
		"/commit/0a1b2c3d":                           "/commit/{id}",
		"/commit/0A1B2C3D4E5F60718293":               "/commit/{id}",
		"/commit/0a1b2c3":                            "/commit/0a1b2c3",
		"/deadbeef":                                  "/deadbeef",
		"/defaced/facade":                            "/defaced/facade",
		"/2fa/v2/x86_64":                             "/2fa/v2/x86_64",
		"/img/12345.png":                             "/img/{id}.png",
		"/js/0a1b2c3d4e5f.min.js":                    "/js/{id}.min.js",
		"/js/main.0a1b2c3d4e5f.js":                   "/js/main.0a1b2c3d4e5f.js",
		"/1.0/users/10.0.0.1":                        "/1.0/users/10.0.0.1",
		"/3.":                                        "/3.",
		"/.123":                                      "/.123",
		"/post-123/123-456":                          "/post-123/123-456",
		"/123/456/":                                  "/{id}/{id}/",
		"/١٢٣":                                       "/١٢٣",
		"/18446744073709551616000000000000000000000": "/{id}",
	} {
		assert.Equal(t, want, PathClass(path), path)
	}
}

// naiveClass is the documented rule, as regular expressions.
func naiveClass(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		m := regexp.MustCompile(`^([0-9]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{8,})(\.[a-zA-Z].*)?$`).FindStringSubmatch(s)
		if m != nil && regexp.MustCompile(`[0-9]|-`).MatchString(m[1]) {
			segments[i] = "{id}" + m[2]
		}
	}
	return strings.Join(segments, "/")
}

// TestPathClass_AsTheRuleSays compares with the rule on paths of pieces that matter to it.
func TestPathClass_AsTheRuleSays(t *testing.T) {
	rng := seeded.Rand(t)
	pieces := []string{"/", "/", ".", "-", "0", "12", "a", "f", "g", "Z", "1234567", "abcdefa", "9b2e4f6a-1c3d-4e5f-8a9b-0c1d2e3f4a5b", ".js", "é"}
	ids := 0
	for range 50_000 {
		var b strings.Builder
		for range rng.IntN(8) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		got := PathClass(b.String())
		require.Equal(t, naiveClass(b.String()), got, b.String())
		if strings.Contains(got, idClass) {
			ids++
			require.Equal(t, got, PathClass(got), "a class is its own class")
		}
	}
	assert.Greater(t, ids, 5000)
}

// keysOf reads a log by a key.
func keysOf(t *testing.T, format, key, log string) (keys []string, facts Facts, err error) {
	t.Helper()
	parsers, err := Select(format, "", "")
	if strings.Contains(format, "=") {
		client, time, _ := strings.Cut(format, "=")
		parsers, err = Select(JSON, client, time)
	}
	require.NoError(t, err)
	k, err := ParseKey(key, func(b []byte) []byte { return []byte("<" + string(b) + ">") })
	require.NoError(t, err)
	facts, err = Read(context.Background(), Config{Sources: []Source{Stream("log", strings.NewReader(log))}, Parsers: parsers, Key: k},
		func(rec Record) { keys = append(keys, string(rec.Client)) })
	return keys, facts, err
}

// TestKey_EachFormat: the parts of keys, of a line of each format.
func TestKey_EachFormat(t *testing.T) {
	const combinedText = `192.0.2.1 - ann [02/Mar/2026:09:00:00 +0000] "GET /users/17?x=1 HTTP/1.1" 404 12 "http://r.example/" "curl/8 (x)"`
	const w3cText = "#Fields: date time c-ip cs-method cs-uri-stem cs-host sc-status cs(User-Agent) x-tenant\n2026-03-02 09:00:00 192.0.2.1 PUT /a/1 H.example 503 curl+8 t1"
	const caddyText = `{"ts":1772442000.25,"request":{"client_ip":"192.0.2.1","method":"GET","host":"A.example:443","uri":"/b/%31/c?d","headers":{"User-Agent":["curl"],"X-Api-Key":["k 1"]}},"status":200,"user_id":"ann","cached":true}`
	const pattern = `$remote_addr [$time_local] "$request" $status $tenant "$http_x_key"`
	for name, c := range map[string]struct{ format, key, log, want string }{
		"client and class": {Auto, "client,path-class", combinedText, "<192.0.2.1> /users/{id}"},
		"order":            {Auto, "path-class,client", combinedText, "/users/{id} <192.0.2.1>"},
		"path":             {Auto, "path", combinedText, "/users/17"},
		"method":           {Auto, "method,status-class", combinedText, "GET 4xx"},
		"status":           {Auto, "status", combinedText, "404"},
		"user":             {Auto, "user", combinedText, "ann"},
		"agent":            {Auto, "agent", combinedText, "curl/8 (x)"},
		"agent, quoted":    {Auto, "method,agent", combinedText, `GET "curl/8 (x)"`},
		"referer":          {Auto, "field:http_referer", combinedText, "http://r.example/"},
		"user, by field":   {Auto, "field:remote_user", combinedText, "ann"},
		"vhost":            {Auto, "host", "WWW.example:80 " + combinedText, "www.example"},
		"vhost, by field":  {Auto, "field:host,field:status", "www.example:80 " + combinedText, "www.example:80 404"},
		"w3c":              {Auto, "host,method,path-class,status-class,agent", w3cText, `h.example PUT /a/{id} 5xx "curl 8"`},
		"w3c, by field":    {Auto, "field:x-tenant", w3cText, "t1"},
		"caddy":            {Auto, "host,method,path-class,user,agent,status", caddyText, "a.example GET /b/{id}/c ann curl 200"},
		"caddy, by field":  {Auto, "client,field:request.headers.X-Api-Key.0,field:cached", caddyText, `<192.0.2.1> "k 1" true`},
		"json":             {"c=t", "field:a.b", `{"c":"x","t":1772442000,"a":{"b":7}}`, "7"},
		"pattern":          {pattern, "client,field:tenant,field:http_x_key", `192.0.2.1 [02/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 t1 "a\"b"`, `<192.0.2.1> t1 "a\"b"`},
		"pattern, named":   {pattern, "method,status-class", `192.0.2.1 [02/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 t1 "-"`, "GET 2xx"},
		"envoy":            {Auto, "host,path", `[2026-03-02T09:00:00.310Z] "POST /a HTTP/2" 204 - 154 0 226 100 "192.0.2.1" "nsq" "cc21" "a.example" "10.0.2.1:80"`, "a.example /a"},
		"haproxy": {Auto, "path-class,field:frontend",
			`192.0.2.1:33317 [02/Mar/2026:09:00:00.655] http-in static/s 10/0/30/69/109 200 1 - - ---- 1/1/1/1/0 0/0 "GET /5 HTTP/1.1"`, "/{id} http-in"},
	} {
		keys, facts, err := keysOf(t, c.format, c.key, strings.Repeat(c.log+"\n", 2))
		require.NoError(t, err, name)
		assert.Equal(t, []string{c.want, c.want}, keys, name)
		assert.Zero(t, facts.Keyless, name)
	}
}

// TestKey_NoTwoRequestsShareOne unless all parts are the same, whatever a client sends.
func TestKey_NoTwoRequestsShareOne(t *testing.T) {
	line := func(agent, referer string) string {
		return `192.0.2.1 - - [02/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1 "` + referer + `" "` + agent + `"` + "\n"
	}
	keys, _, err := keysOf(t, Auto, "field:http_referer,agent", line("a", "b c")+line("c a", "b")+line(`c\" \"a`, "b")+line("a", `\"b c\"`)+line("a", "b c"))
	require.NoError(t, err)
	assert.Equal(t, []string{`"b c" a`, `b "c a"`, `b "c\" \"a"`, `"\"b c\"" a`, `"b c" a`}, keys)
}

// TestKey_Lacking: lines without a part are counted, and a log without it is one error.
func TestKey_Lacking(t *testing.T) {
	line := func(user, request string) string {
		return "192.0.2.1 - " + user + ` [02/Mar/2026:09:00:00 +0000] "` + request + `" 200 1` + "\n"
	}
	keys, facts, err := keysOf(t, Auto, "user", line("ann", "GET / HTTP/1.1")+line("-", "GET / HTTP/1.1")+"x\n\n"+line("bob", "-"))
	require.NoError(t, err)
	assert.Equal(t, []string{"ann", "bob"}, keys)
	assert.Equal(t, []int64{5, 1, 2, 1, 1}, []int64{facts.Lines, facts.Blank, facts.Counted, facts.Malformed, facts.Keyless})

	for want, c := range map[string][3]string{
		"log: key host: format combined has no host; it has client, path-class, path, method, user, agent, status, status-class, and as field:NAME remote_user, request, status": {Auto, "host", line("ann", "GET / HTTP/1.1")},
		"log: key client,field:tenant: format pattern has no field:tenant; it has client, and as field:NAME remote_addr, msec":                                                   {"$remote_addr $msec", "client,field:tenant", "a 1\n"},
		"log: key user: no line of format combined has all of it":                                                                                                                {Auto, "user", line("-", "GET / HTTP/1.1")},
		"log: key field:x: no line of format json has all of it; the first of them has the fields c, t, y":                                                                       {"c=t", "field:x", `{"c":"a","t":1772442000,"y":1}` + "\n"},
		"log: key agent: format w3c has no agent; it has client, path-class, path, and as field:NAME date, time, c-ip, cs-uri-stem":                                              {Auto, "agent", "#Fields: date time c-ip cs-uri-stem\n2026-03-02 09:00:00 192.0.2.1 /a\n"},
	} {
		_, facts, err := keysOf(t, c[0], c[1], c[2])
		require.ErrorIs(t, err, ErrKey)
		assert.True(t, strings.HasPrefix(err.Error(), want), "%v\n%v", want, err)
		assert.Zero(t, facts.Counted)
	}
	// Where other fields are named later on, it is the end there.
	keys, _, err = keysOf(t, W3C, "method", "#Fields: date time c-ip cs-method\n2026-03-02 09:00:00 192.0.2.1 GET\n#Fields: date time c-ip\n2026-03-02 09:00:00 192.0.2.1\n")
	require.ErrorIs(t, err, ErrKey)
	assert.Equal(t, []string{"GET"}, keys)
}

func TestParseKey(t *testing.T) {
	k, err := ParseKey("client", nil)
	require.NoError(t, err)
	assert.Nil(t, k)
	assert.Equal(t, "client", k.String())
	k, err = ParseKey("client,field:a b", nil)
	require.NoError(t, err)
	assert.Equal(t, "client,field:a b", k.String())
	for text, want := range map[string]string{
		"":              `key "" has the part "": want client, path-class, path, method, host, user, agent, status, status-class or field:NAME, with commas between`,
		"client,":       `has the part ""`,
		"field:":        `has the part "field:"`,
		"Client":        `has the part "Client"`,
		"client,client": `key "client,client" has client twice`,
	} {
		_, err := ParseKey(text, nil)
		assert.ErrorContains(t, err, want)
	}
}
