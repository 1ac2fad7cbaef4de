package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const realLog = "access/elastic-apache-2015-05.log.gz"

// realLines is the log, and what must be decided of it: rules for the command line, and what each did.
func realLines(t *testing.T) (lines []string, rules []string, want []truthRule) {
	t.Helper()
	log, ok := loadTruth(t).Logs[realLog]
	require.True(t, ok)
	for name, rule := range log.Rules {
		if !strings.Contains(name, "_20_") {
			continue // TestReplay_GroundTruth has them all
		}
		for _, text := range rulesFor(t, name) {
			rules = append(rules, "--rule", text)
			want = append(want, rule)
		}
	}
	require.NotEmpty(t, want)
	return strings.SplitAfter(strings.TrimSuffix(gunzipFile(t, filepath.Join(dataDir, filepath.FromSlash(realLog))), "\n"), "\n"), rules, want
}

func compressed(t *testing.T, kind, text string) string {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&out)
	if kind == "zst" {
		var err error
		w, err = zstd.NewWriter(&out)
		require.NoError(t, err)
	}
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.String()
}

// TestReplay_GroundTruthByEveryPath: the decisions on the real log are the same however it comes.
func TestReplay_GroundTruthByEveryPath(t *testing.T) {
	lines, rules, want := realLines(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	whole := strings.Join(lines, "")
	var parts []string // the newest first, as a shell lists logs that are kept by number
	for i := range 10 {
		part := strings.Join(lines[len(lines)*(9-i)/10:len(lines)*(10-i)/10], "")
		switch i % 3 {
		case 1:
			parts = append(parts, write(fmt.Sprintf("part.%d.gz", i), compressed(t, "gz", part)))
		case 2:
			parts = append(parts, write(fmt.Sprintf("part.%d.zst", i), compressed(t, "zst", part)))
		default:
			parts = append(parts, write(fmt.Sprintf("part.%d", i), strings.TrimSuffix(part, "\n")))
		}
	}
	half := len(whole) / 2
	for name, c := range map[string]struct {
		stdin string
		args  []string
	}{
		"stdin":            {whole, []string{"-"}},
		"crlf":             {strings.ReplaceAll(whole, "\n", "\r\n"), []string{"-"}},
		"gzip":             {compressed(t, "gz", whole), []string{"-"}},
		"zstd":             {compressed(t, "zst", whole), []string{"-"}},
		"zstd, two frames": {compressed(t, "zst", whole[:half]) + compressed(t, "zst", whole[half:]), []string{"-"}},
		"zstd file":        {"", []string{write("whole.zst", compressed(t, "zst", whole))}},
		"parts":            {"", parts},
		"pattern":          {"", []string{filepath.Join(dir, "part.*")}},
		"file and stdin":   {strings.Join(lines[5000:], ""), []string{write("first", strings.Join(lines[:5000], "")), "-"}},
	} {
		t.Run("path="+name, func(t *testing.T) {
			out := replayJSON(t, strings.NewReader(c.stdin), append(c.args, rules...)...)
			assert.EqualValues(t, len(lines), out.Log.Counted)
			for i := range want {
				assertRule(t, want[i], out.Rules[i])
			}
		})
	}
}

// seenRequest is what formats can express of a line of Combined.
type seenRequest struct {
	client, request, method, target, status, referer, agent string
	at                                                      time.Time
}

var wholeLine = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\] "(.*?)" (\d+) \S+ "(.*?)" "(.*?)"?\n?$`)

// encodings write a request in each format. Their order of fields is that of the servers' documentation, not of
// the parsers' tables.
var encodings = map[string]struct {
	head   string
	format string // on the command line; empty is the name
	args   []string
	line   func(r seenRequest) string
}{
	"vhost-combined": {line: func(r seenRequest) string {
		return fmt.Sprintf(`www.example.com:443 %s - - [%s] "%s" %s 1 "%s" "%s"`, r.client, clf(r.at), r.request, r.status, r.referer, r.agent)
	}},
	"s3": {line: func(r seenRequest) string {
		return fmt.Sprintf(`%s bucket [%s] %s - 3E57427F3EXAMPLE REST.GET.OBJECT key "%s" %s - 7 7 41 40 "%s" "%s" - id= SigV4 TLS-AES AuthHeader bucket.s3.example TLSv1.2 - -`,
			s3Owner, clf(r.at), r.client, r.request, r.status, r.referer, r.agent)
	}},
	"alb": {line: func(r seenRequest) string {
		return fmt.Sprintf(`https %s app/lb/50dc6c495c0c9188 %s:2817 10.0.0.1:80 0.086 0.048 0.037 %s 200 0 57 "%s" "%s" ECDHE-RSA TLSv1.2 arn "Root=1-58337281" "a.example" "arn" 1 %s "forward" "-" "-" "10.0.0.1:80" "200" "-" "-"`,
			r.at.Format("2006-01-02T15:04:05.000000Z"), r.client, r.status, r.request, r.agent, r.at.Format(time.RFC3339Nano))
	}},
	"alb, classic": {format: "alb", line: func(r seenRequest) string {
		return fmt.Sprintf(`%s my-lb %s:2817 10.0.0.1:80 0.000073 0.001048 0.000057 %s 200 0 29 "%s" "%s" - -`, r.at.Format("2006-01-02T15:04:05.000000Z"), r.client, r.status, r.request, r.agent)
	}},
	"cloudfront": {head: "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query\n",
		line: cloudFrontLine},
	"cloudfront, no head": {format: "cloudfront", line: cloudFrontLine},
	"w3c": {head: "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Date: 2015-05-17 10:05:00\n" +
		"#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken\n",
		line: func(r seenRequest) string {
			stem, query, _ := strings.Cut(dashed(r.target), "?")
			return fmt.Sprintf("%s 10.0.0.1 %s %s %s 80 - %s %s %s %s 0 0 5", r.at.Format(time.DateTime), dashed(r.method), stem, dashed(query), r.client,
				dashed(strings.ReplaceAll(r.agent, " ", "+")), dashed(strings.ReplaceAll(r.referer, " ", "+")), r.status)
		}},
	"haproxy": {line: func(r seenRequest) string {
		return r.at.Format(time.Stamp) + " lb1 haproxy[14389]: " + haproxyLine(r)
	}},
	"haproxy, raw": {format: "haproxy", line: haproxyLine},
	"envoy": {line: func(r seenRequest) string {
		return fmt.Sprintf(`[%s] "%s" %s - 154 0 226 100 "%s" "%s" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "a.example" "10.0.2.1:80"`,
			r.at.Format("2006-01-02T15:04:05.000Z"), r.request, r.status, r.client, r.agent)
	}},
	"istio": {format: "envoy", line: func(r seenRequest) string {
		return fmt.Sprintf(`[%s] "%s" %s - via_upstream - "-" 0 47 4 3 "203.0.113.1" "%s" "cc21d9b0" "a:8000" "10.0.0.5:80" inbound|80|| 127.0.0.6:52543 10.0.0.5:80 %s:50158 outbound a default`,
			r.at.Format("2006-01-02T15:04:05.000Z"), r.request, r.status, r.agent, r.client)
	}},
	"envoy, json": {format: "envoy", line: func(r seenRequest) string {
		return fmt.Sprintf(`{"start_time":%q,"method":%q,"path":%q,"response_code":%s,"user-agent":%q,"x-forwarded-for":"203.0.113.1","downstream_remote_address":"%s:41342"}`,
			r.at.Format("2006-01-02T15:04:05.000Z"), r.method, r.target, r.status, r.agent, r.client)
	}},
	"caddy": {line: func(r seenRequest) string {
		return fmt.Sprintf(`{"level":"info","ts":%d.0,"msg":"handled request","request":{"client_ip":%q,"method":%q,"uri":%q,"headers":{"User-Agent":[%q]}},"status":%s}`,
			r.at.Unix(), r.client, r.method, r.target, r.agent, r.status)
	}},
	"traefik": {line: func(r seenRequest) string {
		return fmt.Sprintf(`{"ClientHost":%q,"StartUTC":%q,"RequestMethod":%q,"RequestPath":%q,"DownstreamStatus":%s,"request_User-Agent":%q}`,
			r.client, r.at.Format(time.RFC3339Nano), r.method, r.target, r.status, r.agent)
	}},
	"nginx-json": {line: func(r seenRequest) string {
		return fmt.Sprintf(`{"time_iso8601":%q,"remote_addr":%q,"request":%q,"status":%q,"http_user_agent":%q}`, r.at.Format(time.RFC3339), r.client, r.request, r.status, r.agent)
	}},
	"json": {args: []string{"--client-field", "who.ip", "--time-field", "when"}, line: func(r seenRequest) string {
		return fmt.Sprintf(`{"when":%d,"who":{"ip":%q},"request":%q,"status":%s,"agent":%q}`, r.at.UnixMilli(), r.client, r.request, r.status, r.agent)
	}},
	"pattern": {format: `$msec|$request_method $request_uri|$status|$remote_addr|"$http_user_agent"`, line: func(r seenRequest) string {
		return fmt.Sprintf(`%d.000|%s %s|%s|%s|"%s"`, r.at.Unix(), r.method, r.target, r.status, r.client, r.agent)
	}},
	"pattern, forwarded": {format: `$time_local $host [$http_x_forwarded_for] "$request" $status "$http_user_agent"`, args: []string{"--client-field", "http_x_forwarded_for"},
		line: func(r seenRequest) string {
			return fmt.Sprintf(`%s a.example [203.0.113.1, %s] "%s" %s "%s"`, clf(r.at), r.client, r.request, r.status, r.agent)
		}},
}

func clf(at time.Time) string { return at.Format("02/Jan/2006:15:04:05 -0700") }

func dashed(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func cloudFrontLine(r seenRequest) string {
	stem, query, _ := strings.Cut(r.target, "?")
	blanks := strings.NewReplacer(" ", "%20", "%", "%25", "\t", "%09")
	return fmt.Sprintf("%s\t%s\tFRA2\t2390\t%s\t%s\td1.cloudfront.net\t%s\t%s\t%s\t%s\t%s", r.at.Format(time.DateOnly), r.at.Format(time.TimeOnly), r.client,
		r.method, stem, r.status, dashed(blanks.Replace(r.referer)), dashed(blanks.Replace(r.agent)), dashed(query))
}

func haproxyLine(r seenRequest) string {
	return fmt.Sprintf(`%s:33317 [%s] http-in~ static/srv1 10/0/30/69/109 %s 2750 - - ---- 1/1/1/1/0 0/0 {%s} {} "%s"`, r.client,
		r.at.Format("02/Jan/2006:15:04:05.000"), r.status, strings.ReplaceAll(r.agent, `"`, "#22"), r.request)
}

// TestReplay_GroundTruthInEveryFormat: the real log, written in each format that there is, is decided as before;
// and so are rules that go by what the lines say of requests.
func TestReplay_GroundTruthInEveryFormat(t *testing.T) {
	lines, rules, want := realLines(t)
	file := rulesFile(t, `
- {key: method, rate_limit: {unit: year, requests_per_unit: 1000000}}
- {key: path, value: /favicon.ico, descriptors: [{key: client, rate_limit: {unit: hour, requests_per_unit: 2}}]}
- {key: status, value: "404", rate_limit: {unit: hour, requests_per_unit: 2}}
`)
	rules = append(rules, "--rules", file, "--descriptor", "method={method}", "--descriptor", "path={path},client={client}", "--descriptor", "status={status}")
	inCombined := replayJSON(t, strings.NewReader(strings.Join(lines, "")), append(rules, "-")...)
	byRules := inCombined.Rules[len(inCombined.Rules)-1]
	require.Greater(t, byRules.Denied, int64(50))
	for name, e := range encodings {
		t.Run("format="+name, func(t *testing.T) {
			var log strings.Builder
			log.WriteString(e.head)
			for i, line := range lines {
				m := wholeLine.FindStringSubmatch(line)
				require.NotNil(t, m, "line %d: %q", i+1, line)
				at, err := time.Parse("02/Jan/2006:15:04:05 -0700", m[2])
				require.NoError(t, err)
				r := seenRequest{client: m[1], at: at.UTC(), request: m[3], status: m[4], referer: m[5], agent: strings.ReplaceAll(m[6], `"`, "")}
				r.method, r.target, _ = strings.Cut(strings.TrimSuffix(strings.TrimSuffix(r.request, " HTTP/1.1"), " HTTP/1.0"), " ")
				log.WriteString(e.line(r) + "\n")
			}
			format := e.format
			if format == "" {
				format, _, _ = strings.Cut(name, ",")
			}
			for _, auto := range []bool{true, false} {
				args := append([]string{"-"}, append(rules, e.args...)...)
				if !auto {
					args = append(args, "--format", format)
				} else if strings.Contains(format, "$") {
					continue
				}
				out := replayJSON(t, strings.NewReader(log.String()), args...)
				require.EqualValues(t, len(lines), out.Log.Counted, out.Log.Reason)
				for i := range want {
					assertRule(t, want[i], out.Rules[i])
				}
				got := out.Rules[len(want)]
				assert.Equal(t, byRules.Limits, got.Limits)
				assert.Equal(t, byRules.DecisionsSHA256, got.DecisionsSHA256)
				if !strings.Contains(format, "$") {
					assert.Equal(t, format, out.Log.Format)
				}
			}
		})
	}
}
