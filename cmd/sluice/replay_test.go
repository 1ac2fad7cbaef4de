package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

var update = flag.Bool("update", false, "write the golden files")

const smallLog = `192.0.2.1 - - [02/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
192.0.2.2 - - [02/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
192.0.2.1 - - [02/Mar/2026:09:00:01 +0000] "GET / HTTP/1.1" 200 1
192.0.2.1 - - [02/Mar/2026:09:00:02 +0000] "GET / HTTP/1.1" 200 1
`

// execute runs the command line and returns what it leaves behind.
func execute(stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	return theProgram.Execute(stdin, args...)
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.log")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// The golden files show what `sluice replay` prints. Rewrite them with
//
//	go test ./cmd/sluice -run Golden -update
func TestReplay_GoldenSample(t *testing.T) {
	for file, args := range map[string][]string{
		"sample.txt":  {"replay"},
		"sample.json": {"replay", "--output", "json"},
		"one.txt":     {"replay", "--limit", "20/m burst 20", "--top", "2"},
	} {
		t.Run("file="+file, func(t *testing.T) {
			code, stdout, stderr := execute(nil, args...)
			require.Equal(t, cli.ExitOK, code)
			require.Empty(t, stderr)
			path := filepath.Join("testdata", file)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(stdout), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), stdout)
			if strings.HasSuffix(file, ".txt") {
				for line := range strings.Lines(stdout) {
					assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
				}
			}
		})
	}
}

func TestReplay_SourcesAgree(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := io.WriteString(w, smallLog)
	require.NoError(t, err)
	require.NoError(t, w.Close())

	plain := replayJSON(t, nil, writeFile(t, smallLog), "--limit", "2/m")
	plain.Log.Source = ""
	assert.EqualValues(t, 1, plain.Rules[0].Denied)
	for name, out := range map[string]output{
		"gzip file":    replayJSON(t, nil, writeFile(t, zipped.String()), "--limit", "2/m"),
		"stdin":        replayJSON(t, strings.NewReader(smallLog), "-", "--limit", "2/m"),
		"gzip stdin":   replayJSON(t, &zipped, "-", "--limit", "2/m"),
		"no last end":  replayJSON(t, strings.NewReader(strings.TrimSuffix(smallLog, "\n")), "-", "--limit", "2/m"),
		"crlf":         replayJSON(t, strings.NewReader(strings.ReplaceAll(smallLog, "\n", "\r\n")), "-", "--limit", "2/m"),
		"named format": replayJSON(t, strings.NewReader(smallLog), "--format", "combined", "-", "--limit", "2/m"),
	} {
		out.Log.Source = ""
		assert.Equal(t, plain, out, name)
	}
}

func TestReplay_Rules(t *testing.T) {
	for name, c := range map[string]struct{ args, rules []string }{
		"default":       {nil, []string{"gcra 30/m", "sliding-window 30/m", "fixed-window 30/m"}},
		"limit":         {[]string{"--limit", "5/s burst 2"}, []string{"gcra 5/s burst 2"}},
		"algorithm":     {[]string{"--algorithm", "sliding-log"}, []string{"sliding-log 30/m"}},
		"rule":          {[]string{"--rule", "fixed-window 5/m"}, []string{"fixed-window 5/m"}},
		"rule, blanks":  {[]string{"--rule", "  gcra   5/m  burst 3 "}, []string{"gcra 5/m burst 3"}},
		"product":       {[]string{"--algorithm", "gcra,fixed-window", "--limit", "1/s", "--limit", "2/s"}, []string{"gcra 1/s", "fixed-window 1/s", "gcra 2/s", "fixed-window 2/s"}},
		"repeated flag": {[]string{"--algorithm", "gcra", "--algorithm", "sliding-log"}, []string{"gcra 30/m", "sliding-log 30/m"}},
		"all": {[]string{"--algorithm", "all"}, []string{"gcra 30/m", "token-bucket 30/m", "leaky-bucket 30/m",
			"sliding-window 30/m", "sliding-log 30/m", "fixed-window 30/m"}},
		"rule and product": {[]string{"--limit", "1/s", "--rule", "sliding-log 3/m"}, []string{"sliding-log 3/m", "gcra 1/s"}},
		"same twice":       {[]string{"--rule", "gcra 1/s", "--limit", "1/s", "--limit", "1/s"}, []string{"gcra 1/s"}},
		"unlimited":        {[]string{"--limit", "unlimited", "--limit", "0/s"}, []string{"gcra unlimited", "gcra 0/s"}},
	} {
		t.Run("case="+name, func(t *testing.T) {
			out := replayJSON(t, strings.NewReader(smallLog), append(c.args, "-")...)
			var rules []string
			for _, r := range out.Rules {
				rules = append(rules, r.Rule)
				assert.Equal(t, r.Rule, r.Algorithm+" "+r.Limit)
			}
			assert.Equal(t, c.rules, rules)
		})
	}
}

func TestReplay_JSONFields(t *testing.T) {
	log := `{"request":{"client_ip":"a"},"ts":1772442000.25}` + "\n" +
		`{"request":{"client_ip":"b"},"ts":1772442001.5}` + "\n" + `{"msg":"shutting down"}` + "\n"
	out := replayJSON(t, strings.NewReader(log), "-", "--client-field", "request.client_ip", "--time-field", "ts")
	assert.Equal(t, "json", out.Log.Format)
	assert.EqualValues(t, 2, out.Log.Clients)
	assert.Equal(t, []int64{3}, out.Log.MalformedLines)
	assert.Equal(t, "2026-03-02T09:00:00.25Z", out.Log.FirstTime.Format("2006-01-02T15:04:05.999Z07:00"))
}

func TestReplay_BadCommandLine(t *testing.T) {
	for want, args := range map[string][]string{
		`sluice: unknown command "reply": did you mean replay?`:                    {"reply"},
		`sluice: unknown flag: --limit; see sluice --help`:                         {"--limit", "5/m"},
		`sluice replay: unknown flag --limits: did you mean --limit?`:              {"replay", "--limits", "5/m"},
		`sluice replay: flag needs an argument: --limit; see sluice replay --help`: {"replay", "--limit"},
		`sluice replay: unknown output "xml": want text or json`:                   {"replay", "--output", "xml"},
		`sluice replay: --top -1 is negative: want 0 or more`:                      {"replay", "--top", "-1"},
		`sluice replay: --follow: want a FILE to follow`:                           {"replay", "--follow"},
		`sluice replay: unknown format "iis": want one of auto, combined, vhost-combined, s3, alb, cloudfront, w3c, haproxy, envoy, nginx-json, caddy, traefik, squid, lighttpd, logfmt, cloudflare, gcp, azure, aws-waf, api-gateway, kong, apisix, ecs, json, or a pattern with $remote_addr and $time_local`: {"replay",
			"--format", "iis"},
		`sluice replay: format "$a$b" has nothing between $a and $b: want text there, to tell where one ends`:                            {"replay", "--format", "$a$b"},
		`sluice replay: format "$" has a $ without a name behind it: want one as in nginx's log_format, such as $remote_addr`:            {"replay", "--format", "$"},
		`sluice replay: format "$host [$msec]" has no $remote_addr: want it where the client is, or its name in --client-field`:          {"replay", "--format", "$host [$msec]"},
		`sluice replay: format "$remote_addr" has no time: want $time_local, $time_iso8601, $msec, or its name in --time-field`:          {"replay", "--format", "$remote_addr"},
		`sluice replay: format "$remote_addr [$msec]" has no $t: want it where the time is`:                                              {"replay", "--format", "$remote_addr [$msec]", "--time-field", "t"},
		`sluice replay: format "` + strings.Repeat("$a ", 49) + `" has too many fields: want at most 48, and those behind them left out`: {"replay", "--format", strings.Repeat("$a ", 49)},
		`sluice replay: format json needs the names of both the client and the time field`:                                               {"replay", "--format", "json", "--client-field", "c"},
		`sluice replay: --from "noon": time is not RFC 3339, 2006-01-02 15:04:05 in UTC, 02/Jan/2006:15:04:05 -0700 or a Unix time`:      {"replay", "--from", "noon"},
		`sluice replay: --to "2026-03-02" is not after --from "2026-03-02"; want it later`:                                               {"replay", "--from", "2026-03-02", "--to", "2026-03-02"},
		`sluice replay: unknown algorithm "gcar": want one of gcra, token-bucket, leaky-bucket, sliding-window, sliding-log, fixed-window, or all`: {
			"replay", "--algorithm", "gcar"},
		`sluice replay: unknown algorithm "all": want one of gcra, token-bucket, leaky-bucket, sliding-window, sliding-log, fixed-window`: {
			"replay", "--rule", "all 5/m"},
		`sluice replay: rule "gcra": want an algorithm and a limit, as in "gcra 20/m burst 5"`: {"replay", "--rule", "gcra"},
		`sluice replay: unknown output "a\nb": want text or json`:                              {"replay", "--output", "a\nb"},
	} {
		t.Run("args="+strings.Join(args, " "), func(t *testing.T) {
			code, stdout, stderr := execute(nil, args...)
			assert.Equal(t, cli.ExitUsage, code)
			assert.Empty(t, stdout)
			assert.Equal(t, want+"\n", stderr)
		})
	}
}

// TestReplay_BadLimits leaves the wording to the library and holds it to one line
// that names the flag's value.
func TestReplay_BadLimits(t *testing.T) {
	for _, args := range [][]string{
		{"--limit", "20"}, {"--limit", "x/m"}, {"--limit", "-5/m"}, {"--limit", "20/m burst 0"},
		{"--limit", "20/m burst 5", "--algorithm", "fixed-window"},
		{"--limit", "99999999/s", "--algorithm", "sliding-log"},
		{"--rule", "gcra 20/fortnight"},
	} {
		t.Run("args="+strings.Join(args, " "), func(t *testing.T) {
			code, stdout, stderr := execute(nil, append([]string{"replay"}, args...)...)
			assert.Equal(t, cli.ExitUsage, code)
			assert.Empty(t, stdout)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			assert.True(t, strings.HasPrefix(stderr, "sluice replay: "), stderr)
			assert.NotContains(t, strings.TrimPrefix(stderr, "sluice "), "sluice", stderr)
			_, value, _ := strings.Cut(" "+args[1], " ")
			assert.Contains(t, stderr, strings.TrimPrefix(value, "gcra "))
		})
	}
}

func TestReplay_UnreadableLog(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "no\x1bsuch.log")
	noise := writeFile(t, "\x1b[31mnoise\n\nmore\n")
	for name, c := range map[string]struct {
		stdin io.Reader
		args  []string
		want  string
	}{
		"empty": {strings.NewReader(""), []string{"-"}, "standard input: the log is empty"},
		"noise, one format": {nil, []string{noise, "--format", "combined"}, noise +
			": no readable line among 3 (lines 1, 3: no [02/Jan/2006:15:04:05 -0700] after the client); expected CLIENT ... [02/Jan/2006:15:04:05 -0700]"},
		"noise": {nil, []string{noise}, noise +
			": no readable line among 3 (lines 1, 3: in none of the known formats: combined, vhost-combined, s3, alb, haproxy, envoy, squid, cloudfront, w3c, logfmt, caddy, traefik, nginx-json, cloudflare, gcp, azure, aws-waf, api-gateway, kong, apisix, ecs)"},
		"unknown json": {strings.NewReader("{}\n"), []string{"-"}, "standard input: no readable line among 1 (line 1: JSON without the fields of a known format)" +
			"; name the fields with --client-field and --time-field"},
		"broken gzip": {strings.NewReader("\x1f\x8b\x08\x00"), []string{"-"}, "standard input: the gzip data is cut off"},
		"read error": {io.MultiReader(strings.NewReader("noise\nmore noise\n"), iotest.ErrReader(errors.New("disk on fire"))), []string{"-"},
			"standard input: line 3: disk on fire"},
		"path error": {io.MultiReader(strings.NewReader("longer noise\n"), iotest.ErrReader(&fs.PathError{Op: "read", Path: "x", Err: errors.New("disk on fire")})),
			[]string{"-"}, "standard input: line 2: disk on fire"},
	} {
		t.Run("log="+name, func(t *testing.T) {
			code, stdout, stderr := execute(c.stdin, append([]string{"replay"}, c.args...)...)
			assert.Equal(t, cli.ExitFailed, code)
			assert.Empty(t, stdout)
			assert.Equal(t, "sluice replay: "+c.want+"\n", stderr)
		})
	}
	for _, path := range []string{missing, dir} {
		code, stdout, stderr := execute(nil, "replay", path)
		assert.Equal(t, cli.ExitFailed, code)
		assert.Empty(t, stdout)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		assert.NotContains(t, stderr, "\x1b")
	}
}

func TestReplay_WriteErrorIsReported(t *testing.T) {
	for _, form := range []string{"text", "json"} {
		var stderr bytes.Buffer
		code := run([]string{"replay", "--output", form}, nil, servetest.FullDisk{}, &stderr)
		assert.Equal(t, cli.ExitFailed, code)
		assert.Equal(t, "sluice replay: writing the report: no space left on device\n", stderr.String())
	}
}

// TestReplay_Interrupted: SIGINT ends a log that goes on, though it has nothing to read, and the report
// covers what has been read.
func TestReplay_Interrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no process can be sent SIGINT on Windows")
	}
	noted := make(chan os.Signal, 1)
	signal.Notify(noted, os.Interrupt) // the other process would inherit that this one ignores it, as in the background of a script
	defer signal.Stop(noted)
	cmd := exec.Command(os.Args[0], "replay", "-", "--limit", "1/d")
	cmd.Env = append(os.Environ(), servetest.AsProgram+"=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	log, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	// More than the pipe and the buffers hold: some of it has been replayed when all is written.
	_, err = io.WriteString(log, strings.Repeat(smallLog, 10_000))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	assert.Equal(t, cli.ExitInterrupted, cmd.ProcessState.ExitCode())
	assert.Regexp(t, `^sluice replay: standard input: line \d+: interrupted; the report covers what comes before\n$`, stderr.String())
	assert.Regexp(t, `\n  not read to the end: line \d+: interrupted\n`, stdout.String())
	assert.Contains(t, stdout.String(), "requests of 2 clients")
}

// FuzzReplay holds for any file: one report or one line of error, and nothing that
// a terminal would obey.
func FuzzReplay(f *testing.F) {
	f.Add([]byte(smallLog), true)
	f.Add([]byte(`{"ClientHost":"\u001b[2J","StartUTC":"2021-12-08T14:02:43.4Z"}`+"\n"), true)
	f.Add([]byte("a\x1b]0;x\x07 - - [02/Mar/2026:09:00:00 +0000]\na - - [11/Apr/2262:23:47:16 +0000]\n"), true)
	f.Add([]byte("\x1f\x8b\x08"), false)
	f.Fuzz(func(t *testing.T, log []byte, text bool) {
		form := map[bool]string{true: "text", false: "json"}[text]
		code, stdout, stderr := execute(bytes.NewReader(log), "replay", "-", "--limit", "1/m", "--algorithm", "all", "--output", form)
		switch code {
		case cli.ExitOK:
			assert.Empty(t, stderr)
			assert.NotEmpty(t, stdout)
		case cli.ExitFailed:
			assert.Equal(t, stdout != "", strings.Contains(stderr, "the report covers what comes before"))
			assert.Equal(t, 1, strings.Count(stderr, "\n"))
		default:
			assert.Fail(t, fmt.Sprintf("exit code %d", code), stderr)
		}
		assert.NotRegexp(t, `[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}\x{202a}-\x{202e}]`, stdout+stderr)
	})
}
