package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
)

const (
	request = ` "GET / HTTP/1.1" 200 1 "-" "curl/8.5.0"`
	stamp   = "[02/Mar/2026:09:00:00 +0000]"
	clfLine = "192.0.2.1 - - " + stamp + request
	s3Owner = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"
)

// clientOf replays a line three times under a limit of one, and returns the one client
// that the report names.
func clientOf(t *testing.T, line string, args ...string) (format, client string) {
	t.Helper()
	out := replayJSON(t, strings.NewReader(strings.Repeat(line+"\n", 3)), append(args, "-", "--limit", "1/m")...)
	require.EqualValues(t, 3, out.Log.Counted)
	require.Len(t, out.Rules[0].Top, 1)
	return out.Log.Format, out.Rules[0].Top[0].Client
}

// TestReplay_FindsTheClient has lines as servers write them, not as formats are defined.
func TestReplay_FindsTheClient(t *testing.T) {
	for name, c := range map[string]struct{ line, format, client string }{
		"common":               {"192.0.2.1 - - " + stamp + ` "GET / HTTP/1.1" 200 1`, "combined", "192.0.2.1"},
		"host name":            {"host.example.org - ann " + stamp + request, "combined", "host.example.org"},
		"user with blanks":     {"192.0.2.1 - Ann Lee " + stamp + request, "combined", "192.0.2.1"},
		"user is an address":   {"192.0.2.1 - 203.0.113.9 " + stamp + request, "combined", "192.0.2.1"},
		"user ends like one":   {"192.0.2.1 - x 203.0.113.9 - - " + stamp + request, "combined", "192.0.2.1"},
		"user is empty":        {`192.0.2.1 - "" ` + stamp + request, "combined", "192.0.2.1"},
		"user and request":     {`192.0.2.1 - "" ` + stamp + ` "" 408 -`, "combined", "192.0.2.1"},
		"vhost, user is empty": {`www.example.com:443 192.0.2.1 - "" ` + stamp + request, "vhost-combined", "192.0.2.1"},
		"iis ncsa":             {`192.0.2.1 - EXAMPLE\ann ` + stamp + ` "GET / HTTP/1.0" 200 1`, "combined", "192.0.2.1"},
		"traefik clf":          {"192.0.2.1 - - " + stamp + ` "GET / HTTP/2.0" 200 1 "-" "-" 7 "web@docker" "http://10.0.0.3:80" 2ms`, "combined", "192.0.2.1"},
		"haproxy clf":          {"192.0.2.1 - - " + stamp + ` "GET / HTTP/1.1" 200 1 "" "" 33317 655 "http-in" "static" "srv1" 10 0`, "combined", "192.0.2.1"},
		"old ingress":          {"192.0.2.1 - [192.0.2.1] - - " + stamp + request, "combined", "192.0.2.1"},
		"unix socket":          {"unix: - - " + stamp + request, "combined", "unix:"},
		"port":                 {"192.0.2.1:41342 - - " + stamp + request, "combined", "192.0.2.1"},
		"ipv6 and port":        {"[2001:db8:0:1::9]:41342 - - " + stamp + request, "combined", "2001:db8:0:1::/64"},
		"mapped ipv4":          {"::ffff:192.0.2.1 - - " + stamp + request, "combined", "192.0.2.1"},
		"vhost and port":       {"www.example.com:443 192.0.2.1 - - " + stamp + request, "vhost-combined", "192.0.2.1"},
		"vhost, ipv6":          {"www.example.com:443 2001:db8::7 - - " + stamp + request, "vhost-combined", "2001:db8::/64"},
		"vhost, client named":  {"www.example.com:443 host.example.org - - " + stamp + request, "vhost-combined", "host.example.org"},
		"vhost is an address":  {"127.0.1.1:80 192.0.2.1 - - " + stamp + request, "vhost-combined", "192.0.2.1"},
		"vhost only":           {"www.example.com 192.0.2.1 - ann " + stamp + request, "vhost-combined", "192.0.2.1"},
		"s3": {s3Owner + " amzn-s3-demo-bucket1 " + stamp + " 192.0.2.3 " + s3Owner +
			` 3E57427F3EXAMPLE REST.GET.VERSIONING - "GET /amzn-s3-demo-bucket1?versioning HTTP/1.1" 200 - 113 - 7 - "-" "S3Console/0.4" -`, "s3", "192.0.2.3"},
		"s3, ipv6": {s3Owner + " b " + stamp + ` 2001:db8::1 - 3E57 REST.GET.OBJECT k "GET /k HTTP/1.1" 404 NoSuchKey - 7 41 - "-" "a "b" c" -`, "s3", "2001:db8::/64"},
		"alb": {`https 2026-03-02T09:00:00.186641Z app/lb/50dc 192.0.2.1:2817 10.0.0.1:80 0.08 0.04 0.03 200 200 34 366` + request +
			` ECDHE TLSv1.2`, "alb", "192.0.2.1"},
		"alb, ipv6":  {`h2 2026-03-02T09:00:00.186641Z app/lb/50dc 2001:db8::1:2817 - -1 -1 -1 460 - 34 366 "- http://a.example:80- -" "-"`, "alb", "2001:db8::/64"},
		"elb":        {`2026-03-02T09:00:00.945958Z lb 192.0.2.1:2817 10.0.0.1:80 0.07 0.00 0.00 200 200 0 29` + ` "GET http://a.example:80/ HTTP/1.1" "-" - -`, "alb", "192.0.2.1"},
		"cloudfront": {"2026-03-02\t09:00:00\tFRA2\t2390\t192.0.2.1\tGET\td1.cloudfront.net\t/\t200\t-\tcurl\t-", "cloudfront", "192.0.2.1"},
		"haproxy": {"Mar  2 09:00:00 lb1 haproxy[14389]: 192.0.2.1:33317 [02/Mar/2026:09:00:00.655] http-in static/srv1 10/0/30/69/109 200 1 - - ---- 1/1/1/1/0 0/0" +
			` {a b} {} "GET / HTTP/1.1"`, "haproxy", "192.0.2.1"},
		"haproxy, raw": {"2001:db8::1:33317 [02/Mar/2026:09:00:00.655] http-in~ static/<NOSRV> -1/-1/-1/-1/109 -1 1 - - CR-- 1/1/1/1/0 0/0" +
			` "<BADREQ>"`, "haproxy", "2001:db8::/64"},
		"envoy": {`[2026-03-02T09:00:00.310Z] "POST /a HTTP/2" 204 - 154 0 226 100 "203.0.113.9, 192.0.2.1" "nsq" "cc21" "a.example" "10.0.2.1:80"`, "envoy", "192.0.2.1"},
		"istio": {`[2026-03-02T09:00:00.310Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 0 47 4 3 "203.0.113.9" "curl" "cc21" "a:8000" "10.0.0.5:80" ` +
			`inbound|80|| 127.0.0.6:52543 10.0.0.5:80 192.0.2.1:50158 outbound_.8000_._.a default`, "envoy", "192.0.2.1"},
		"envoy, json": {`{"start_time":"2026-03-02T09:00:00.310Z","x-forwarded-for":"203.0.113.9","downstream_remote_address":"192.0.2.1:41342",":authority":"a"}`, "envoy", "192.0.2.1"},
		"envoy, list": {`{"start_time":"2026-03-02T09:00:00.310Z","x-forwarded-for":"203.0.113.9, 192.0.2.1"}`, "envoy", "192.0.2.1"},
		"caddy": {`{"level":"info","ts":1772442000.25,"logger":"http.log.access.log0","msg":"handled request",` +
			`"request":{"remote_ip":"10.0.0.2","remote_port":"41342","client_ip":"192.0.2.1","proto":"HTTP/2.0"},"status":200}`, "caddy", "192.0.2.1"},
		"caddy before 2.7":  {`{"level":"info","ts":1772442000.25,"request":{"remote_ip":"192.0.2.1","remote_port":"41342"},"status":200}`, "caddy", "192.0.2.1"},
		"caddy before 2.5":  {`{"level":"info","ts":1772442000.25,"request":{"remote_addr":"192.0.2.1:41342","proto":"HTTP/1.1"},"status":200}`, "caddy", "192.0.2.1"},
		"caddy, iso8601":    {`{"ts":"2026-03-02T09:00:00.000+0000","request":{"client_ip":"192.0.2.1"}}`, "caddy", "192.0.2.1"},
		"nginx, iso8601":    {`{"time_iso8601":"2026-03-02T09:00:00+00:00","remote_addr":"192.0.2.1","request":"GET / HTTP/1.1"}`, "nginx-json", "192.0.2.1"},
		"nginx, local":      {`{"time_local":"02/Mar/2026:09:00:00 +0000","remote_addr":"192.0.2.1","time":"0.003"}`, "nginx-json", "192.0.2.1"},
		"nginx, forwarded":  {`{"time":"2026-03-02T09:00:00+00:00","remote_addr":"","x_forwarded_for":"203.0.113.9, 192.0.2.1"}`, "nginx-json", "192.0.2.1"},
		"nginx, @timestamp": {`{"@timestamp":"2026-03-02T09:00:00+00:00","remote_addr":"192.0.2.1"}`, "nginx-json", "192.0.2.1"},
		"syslog":            {"Mar  2 09:00:00 web1 nginx: " + clfLine, "combined", "192.0.2.1"},
		"syslog, priority":  {"<190>Mar  2 09:00:00 web1 nginx: " + clfLine, "combined", "192.0.2.1"},
		"syslog, 5424":      {"<165>1 2026-03-02T09:00:00.003Z web1 nginx - - - " + clfLine, "combined", "192.0.2.1"},
		"syslog, data":      {`<165>1 2026-03-02T09:00:00.003Z web1 nginx 8 ID [a c="\]"][d] ` + clfLine, "combined", "192.0.2.1"},
		"rsyslog":           {"2026-03-02T09:00:00.1+00:00 web1 nginx: " + clfLine, "combined", "192.0.2.1"},
		"journald":          {"Mar 02 09:00:00 web1 nginx[812]: " + clfLine, "combined", "192.0.2.1"},
		"haproxy, syslog":   {"Mar  2 09:00:00 lb1 haproxy[14389]: " + clfLine, "combined", "192.0.2.1"},
		"compose":           {"nginx-1  | " + clfLine, "combined", "192.0.2.1"},
		"cri":               {"2026-03-02T09:00:00.1Z stdout F " + clfLine, "combined", "192.0.2.1"},
		"kubectl --prefix":  {"[pod/web-7d4b9c/nginx] " + clfLine, "combined", "192.0.2.1"},
		"docker":            {`{"log":"` + strings.ReplaceAll(clfLine, `"`, `\"`) + `\n","stream":"stdout","time":"2026-03-02T09:00:00.1Z"}`, "combined", "192.0.2.1"},
		"fluent-bit":        {`{"date":1772442000.1,"log":"{\"remote_addr\":\"192.0.2.1\",\"time_iso8601\":\"2026-03-02T09:00:00Z\"}"}`, "nginx-json", "192.0.2.1"},
		"message":           {`{"@timestamp":"2026-03-02T09:00:00Z","message":"` + strings.ReplaceAll(clfLine, `"`, `\"`) + `"}`, "combined", "192.0.2.1"},
		"array":             {`[{"remote_addr":"192.0.2.1","time_iso8601":"2026-03-02T09:00:00Z"},`, "nginx-json", "192.0.2.1"},
		"list":              {"203.0.113.7, 192.0.2.1 - - " + stamp + request, "combined", "192.0.2.1"},
		"vhost, list":       {"www.example.com:443 203.0.113.7, 192.0.2.1 - - " + stamp + request, "vhost-combined", "192.0.2.1"},
		"alb, list":         {`https 2026-03-02T09:00:00.1Z app/lb/50dc 10.0.0.1,192.0.2.1:2817 10.0.0.1:80 0.08 0.04 0.03 200 200 34 366` + request, "alb", "192.0.2.1"},
		"iis, no fields":    {"2026-03-02 09:00:00 10.0.0.1 GET / - 80 - 192.0.2.1 curl - 200 0 0 5", "w3c", "192.0.2.1"},
		"squid":             {"1772442000.586    921 192.0.2.1 TCP_MISS/200 507 POST http://example.com - HIER_DIRECT/10.0.0.1 -", "squid", "192.0.2.1"},
		"cloudflare":        {`{"ClientIP":"192.0.2.1","EdgeStartTimestamp":1772442000000000000,"ClientRequestURI":"/"}`, "cloudflare", "192.0.2.1"},
		"google cloud":      {`{"httpRequest":{"remoteIp":"192.0.2.1"},"timestamp":"2026-03-02T09:00:00.1Z"}`, "gcp", "192.0.2.1"},
		"azure":             {`{"time":"2026-03-02T09:00:00Z","properties":{"clientIP":"192.0.2.1","httpMethod":"GET"}}`, "azure", "192.0.2.1"},
		"azure, front door": {`{"time":"2026-03-02T09:00:00Z","properties":{"clientIp":"192.0.2.1"}}`, "azure", "192.0.2.1"},
		"aws waf":           {`{"timestamp":1772442000123,"httpRequest":{"clientIp":"192.0.2.1","country":"DE"}}`, "aws-waf", "192.0.2.1"},
		"api gateway":       {`{"requestId":"x","ip":"192.0.2.1","requestTime":"02/Mar/2026:09:00:00 +0000","httpMethod":"GET"}`, "api-gateway", "192.0.2.1"},
		"cloudfront, json":  {`{"date":"2026-03-02","time":"09:00:00","c-ip":"192.0.2.1","cs-method":"GET"}`, "cloudfront", "192.0.2.1"},
		"kong":              {`{"client_ip":"192.0.2.1","started_at":1772442000123,"request":{"method":"GET"}}`, "kong", "192.0.2.1"},
		"apisix":            {`{"client_ip":"192.0.2.1","start_time":1772442000123,"request":{"method":"GET"}}`, "apisix", "192.0.2.1"},
		"ecs":               {`{"@timestamp":"2026-03-02T09:00:00Z","client":{"ip":"192.0.2.1"},"http":{"request":{"method":"GET"}}}`, "ecs", "192.0.2.1"},
		"heroku":            {`2026-03-02T09:00:00.1+00:00 heroku[router]: at=info method=GET path="/?fwd=1" host=a.example request_id=x fwd="203.0.113.9, 192.0.2.1" dyno=web.1 status=200`, "logfmt", "192.0.2.1"},
		"logfmt":            {`time=2026-03-02T09:00:00Z level=info msg="a \"b\" client_ip=203.0.113.9" client_ip=192.0.2.1 path=/`, "logfmt", "192.0.2.1"},
		"caddy, console":    {"2026/03/02 09:00:00.123\tINFO\thttp.log.access\thandled request\t" + `{"request":{"client_ip":"192.0.2.1","method":"GET"},"status":200}`, "caddy", "192.0.2.1"},
		"elastic":           {`{"time":"02/Mar/2026:09:00:00 +0000","remote_ip":"192.0.2.1"}`, "nginx-json", "192.0.2.1"},
	} {
		t.Run("line="+name, func(t *testing.T) {
			format, client := clientOf(t, c.line)
			assert.Equal(t, c.format, format)
			assert.Equal(t, c.client, client)
			format, client = clientOf(t, c.line, "--format", c.format)
			assert.Equal(t, c.format, format)
			assert.Equal(t, c.client, client)
		})
	}
}

// TestReplay_RefusesWhereTheClientIsNotCertain: another field in its place would be
// replayed without anybody noticing.
func TestReplay_RefusesWhereTheClientIsNotCertain(t *testing.T) {
	for name, c := range map[string]struct{ line, reason string }{
		"two addresses":   {"203.0.113.7 " + clfLine, "two addresses"},
		"list of names":   {"203.0.113.7, host.example.org - - " + stamp + request, "a list whose last word is no address"},
		"message":         {"Mar  2 09:00:00 web1 nginx: starting", ""},
		"text before":     {"web1 nginx | " + clfLine, "text before the client"},
		"no client":       {"- - - " + stamp + request, "the client is -"},
		"none forwarded":  {"- " + clfLine, "the client is -"},
		"s3, no client":   {s3Owner + " bucket " + stamp + ` - s3.amazonaws.com 3E57 S3.EXPIRE.OBJECT key "-" - - 7 - - - "-" "-" -`, "the client is -"},
		"cloudfront, cut": {"2026-03-02\t09:00:00\tFRA2\t2390\t192.0.2.1\tGET", ""},
		"envoy, forged": {`[2026-03-02T09:00:00.310Z] "GET /" 200 - 1 1 1 - "203.0.113.9" " HTTP/2" 204 - 154 0 226 100 "192.0.2.1" "nsq" "cc21" "a.example" "10.0.2.1:80"`,
			"16 quotes where the format has 12: in a field"},
		"envoy, nobody": {`[2026-03-02T09:00:00.310Z] "GET / HTTP/2" 204 - 154 0 226 100 "-" "nsq" "cc21" "a.example" "10.0.2.1:80"`, "the client is -"},
		"haproxy, tcp":  {"192.0.2.1:33317 [02/Mar/2026:09:00:00.655] fnt bck/srv 0/0/5007 212 -- 0/0/0/0/3 0/0", ""},
		"json, dash":    {`{"remote_addr":"-","time_iso8601":"2026-03-02T09:00:00Z"}`, "the client is -"},
	} {
		t.Run("line="+name, func(t *testing.T) {
			code, stdout, stderr := execute(strings.NewReader(c.line+"\n"+c.line+"\n"), "replay", "-")
			assert.Equal(t, cli.ExitFailed, code)
			assert.Empty(t, stdout)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			assert.Contains(t, stderr, c.reason)
		})
	}
}

// TestReplay_EachLineByItsFormat: a format that was changed in the middle of a file costs no line.
func TestReplay_EachLineByItsFormat(t *testing.T) {
	vhost := "www.example.com:443 192.0.2.1 - - " + stamp + request + "\n"
	for _, log := range []string{vhost + clfLine + "\n", clfLine + "\n" + vhost} {
		out := replayJSON(t, strings.NewReader(log), "-")
		assert.EqualValues(t, 2, out.Log.Counted)
		assert.EqualValues(t, 1, out.Log.Clients)
		assert.Contains(t, out.Log.Format, "combined, ")
	}
}

// TestReplay_FromTo leaves out what is earlier, or not earlier than the end.
func TestReplay_FromTo(t *testing.T) {
	var log strings.Builder
	for second := range 10 {
		fmt.Fprintf(&log, "192.0.2.1 - - [02/Mar/2026:09:00:%02d +0000]%s\n", second, request)
	}
	for args, counted := range map[string]int64{
		"--from 2026-03-02T09:00:04Z":                                6,
		"--to 2026-03-02T09:00:04Z":                                  4,
		"--from 2026-03-02T09:00:04Z --to 2026-03-02T10:00:05+01:00": 1,
		"--from 2026-03-02 --to 2026-03-03":                          10,
	} {
		out := replayJSON(t, strings.NewReader(log.String()), append(strings.Fields(args), "-")...)
		assert.Equal(t, counted, out.Log.Counted, args)
		assert.Equal(t, 10-counted, out.Log.Outside, args)
	}
	code, _, stderr := execute(strings.NewReader(log.String()), "replay", "-", "--from", "2027-01-01")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Equal(t, "sluice replay: standard input: no request in the time asked for: all 10 are before --from or after --to, which are in UTC unless they have a zone\n", stderr)
}

// TestReplay_Lighttpd: the host in the place of the ident can be an address, which --format lighttpd says.
func TestReplay_Lighttpd(t *testing.T) {
	line := "192.0.2.1 203.0.113.9 - " + stamp + request + "\n"
	code, _, stderr := execute(strings.NewReader(line), "replay", "-")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "--format lighttpd")
	format, client := clientOf(t, strings.TrimSuffix(line, "\n"), "--format", "lighttpd")
	assert.Equal(t, "lighttpd", format)
	assert.Equal(t, "192.0.2.1", client)
}

func TestReplay_CountsIPv6ByNetworkAsTheMiddlewareDoes(t *testing.T) {
	log := ""
	for i := range 4 {
		log += fmt.Sprintf("2001:db8:0:%x::%x - - %s%s\n", i/2, i+1, stamp, request)
	}
	for args, clients := range map[string]int64{
		"": 2, "--ipv6-prefix 64": 2, "--ipv6-prefix 128": 4, "--ipv6-prefix 48": 1, "--ipv6-prefix 63": 1,
	} {
		out := replayJSON(t, strings.NewReader(log), append(strings.Fields(args), "-")...)
		assert.Equal(t, clients, out.Log.Clients, args)
	}
	for _, prefix := range []string{"0", "31", "129", "-1"} {
		code, stdout, stderr := execute(nil, "replay", "--ipv6-prefix", prefix)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Empty(t, stdout)
		assert.Equal(t, "sluice replay: --ipv6-prefix "+prefix+" is not a length of prefix to limit by: want 32 to 128\n", stderr)
	}
}

// TestReplay_ReportsWhatCouldBeRead covers the logs that end in the middle.
func TestReplay_ReportsWhatCouldBeRead(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	for i := range 5000 {
		fmt.Fprintf(w, "192.0.2.%d - - %s%s\n", i%251, stamp, request)
	}
	require.NoError(t, w.Close())
	whole := zipped.String()
	corrupt := []byte(whole)
	corrupt[len(corrupt)-8] ^= 1 // the checksum
	for name, c := range map[string]struct{ log, reason string }{
		"cut":       {whole[:len(whole)/2], "the gzip data is cut off"},
		"no end":    {whole[:len(whole)-3], "the gzip data is cut off"},
		"checksum":  {string(corrupt), "gzip: invalid checksum"},
		"then more": {whole + "more", "the gzip data ends, and other data follows: want gzip data only, as from cat A.gz B.gz"},
	} {
		for _, form := range []string{"text", "json"} {
			t.Run("log="+name+"/"+form, func(t *testing.T) {
				code, stdout, stderr := execute(strings.NewReader(c.log), "replay", "-", "--output", form)
				assert.Equal(t, cli.ExitFailed, code)
				assert.Regexp(t, `^sluice replay: standard input: line \d+: `+c.reason+`; the report covers what comes before\n$`, stderr)
				assert.Contains(t, stdout, c.reason)
				assert.Contains(t, stdout, "251") // the clients
			})
		}
	}
}

func TestReplay_ReportsUpToAReadError(t *testing.T) {
	broken := &fs.PathError{Op: "read", Path: "access.log", Err: errors.New("disk on fire")}
	code, stdout, stderr := execute(io.MultiReader(strings.NewReader(smallLog), iotest.ErrReader(broken)), "replay", "-")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Equal(t, "sluice replay: standard input: line 5: disk on fire; the report covers what comes before\n", stderr)
	assert.Contains(t, stdout, "4 requests of 2 clients")
	assert.Contains(t, stdout, "\n  not read to the end: line 5: disk on fire\n")
}

func TestReplay_SaysWhatIsWrongWithAFile(t *testing.T) {
	line := "192.0.2.1 - - " + stamp + request
	var wide bytes.Buffer
	for _, unit := range utf16.Encode([]rune("\ufeff" + line + "\n")) {
		wide.Write([]byte{byte(unit), byte(unit >> 8)})
	}
	for name, c := range map[string]struct{ log, want string }{
		"empty":           {"", "the log is empty"},
		"nothing but bom": {"\xef\xbb\xbf", "the log has nothing but blank lines"},
		"blank":           {"\n \r\n\t\n", "the log has nothing but blank lines"},
		"nul":             {strings.Repeat("\x00", 3<<20), "the log has nothing but NUL bytes"},
		"nul and blank":   {"\x00\x00\n\n", "the log has nothing but NUL bytes"},
		"mac":             {strings.Repeat(line+"\r", 3), "carriage returns where line feeds should be: tr '\\r' '\\n' puts them right"},
		"long mac":        {strings.Repeat(line+"\r", 20000), "carriage returns where line feeds should be: tr '\\r' '\\n' puts them right"},
		"program":         {"\x7fELF\x02\x00\rH\x89\n", "in none of the known formats"},
		"year 2290":       {strings.ReplaceAll(line, "2026", "2290"), "time is before 1970 or after April 2262"},
		"json, 2290":      {`{"remote_ip":"192.0.2.1","time":"2290-03-02T09:00:00Z"}`, "field time: time is before 1970 or after April 2262"},
		"json, bad time":  {`{"remote_ip":"192.0.2.1","time":"today"}`, "field time: time is not RFC 3339"},
		"bzip2":           {"BZh91AY&SY\x00\x01", "bzip2 data: want plain text, gzip or zstd, as from bzcat FILE | sluice replay -"},
		"zstd":            {"\x28\xb5\x2f\xfd\x04\x58", "the zstd data is cut off"},
		"xz":              {"\xfd7zXZ\x00\x00\x04", "xz data: want plain text, gzip or zstd, as from xzcat FILE | sluice replay -"},
		"lz4":             {"\x04\x22\x4d\x18\x64\x40", "lz4 data: want plain text, gzip or zstd, as from lz4cat FILE | sluice replay -"},
		"zip":             {"PK\x03\x04\x14\x00", "zip data: want plain text, gzip or zstd, as from unzip -p FILE | sluice replay -"},
		"utf-16":          {wide.String(), "UTF-16 text: want UTF-8, as from iconv -f UTF-16 -t UTF-8 FILE | sluice replay -"},
		"long line":       {strings.Repeat("x", 2<<20), "longer than 1048576 bytes"},
	} {
		t.Run("log="+name, func(t *testing.T) {
			code, stdout, stderr := execute(strings.NewReader(c.log), "replay", "-")
			assert.Equal(t, cli.ExitFailed, code)
			assert.Empty(t, stdout)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			assert.Contains(t, stderr, c.want)
		})
	}
}

// TestReplay_QuotesInEnvoy: Envoy escapes none, so that a line with more of them is left out; the next one is not.
func TestReplay_QuotesInEnvoy(t *testing.T) {
	line := `[2026-03-02T09:00:00.310Z] "GET /%s HTTP/1.1" 200 - 0 2 0 - "192.0.2.1" "%s" "414e4b98" "a.example" "-"` + "\n"
	out := replayJSON(t, strings.NewReader(fmt.Sprintf(line+line+line, `a?x="y`, "x", "b", `a "q"`, "c", "x")), "-")
	assert.EqualValues(t, 1, out.Log.Counted)
	assert.Equal(t, []int64{1, 2}, out.Log.MalformedLines)
}

func TestReplay_MixedLineEnds(t *testing.T) {
	line := "192.0.2.1 - - " + stamp + request
	out := replayJSON(t, strings.NewReader(line+"\r\n"+line+"\n"+line+"\r\r\n"+line+"\r"), "-")
	assert.EqualValues(t, 4, out.Log.Counted)
	out = replayJSON(t, strings.NewReader(line+"\n"+line+"\r"+line+"\n"), "-")
	assert.Equal(t, []int64{2}, out.Log.MalformedLines)
}

// TestReplay_NamesGzipBehindText: of such a log most is missing from the report.
func TestReplay_NamesGzipBehindText(t *testing.T) {
	var log bytes.Buffer
	line := "192.0.2.1 - - " + stamp + request + "\n"
	log.WriteString(line)
	w := gzip.NewWriter(&log)
	fmt.Fprint(w, line)
	require.NoError(t, w.Close())
	out := replayJSON(t, &log, "-")
	assert.EqualValues(t, 1, out.Log.Counted)
	assert.Equal(t, "gzip data behind lines of text: want one kind, as from zcat -f A.gz B", out.Log.Reason)
}

// TestReplay_NotesThatAllClientsMayBeOneProxy: nothing in such a log tells clients apart.
func TestReplay_NotesThatAllClientsMayBeOneProxy(t *testing.T) {
	const note = "a private address"
	for name, c := range map[string]struct {
		clients        []string
		private, noted bool
	}{
		"one proxy":       {[]string{"10.0.0.7"}, true, true},
		"two, one ipv6":   {[]string{"172.17.0.1", "fd00::1"}, true, true},
		"loopback":        {[]string{"127.0.0.1"}, true, true},
		"unix socket":     {[]string{"unix:"}, true, true},
		"one from afar":   {[]string{"10.0.0.7", "192.0.2.1"}, false, false},
		"many in a house": {[]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"}, true, false},
	} {
		t.Run("clients="+name, func(t *testing.T) {
			var log strings.Builder
			for i := range 100 {
				io.WriteString(&log, c.clients[i%len(c.clients)]+" - - "+stamp+request+"\n")
			}
			code, stdout, stderr := execute(strings.NewReader(log.String()), "replay", "-")
			require.Equal(t, cli.ExitOK, code, stderr)
			assert.Equal(t, c.noted, strings.Contains(stdout, note), stdout)
			out := replayJSON(t, strings.NewReader(log.String()), "-")
			assert.Equal(t, c.private, out.Log.PrivateClients)
		})
	}
}

// TestReplay_HelpNamesTheFormats: all that --format takes.
func TestReplay_HelpNamesTheFormats(t *testing.T) {
	_, help, _ := execute(nil, "replay", "--help")
	for _, format := range accesslog.Formats() {
		assert.Regexp(t, `(?m)^  ([a-z0-9-]+, )*`+format+`[, ]|default "`+format+`"`, help)
	}
}
