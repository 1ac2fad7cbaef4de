package accesslog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const record = " - - [" + someTime + `] "GET / HTTP/1.1" 200 1`

// readAll returns the clients of a log, with the final error and the account.
func readAll(t *testing.T, src io.Reader, format string) ([]string, Facts, error) {
	t.Helper()
	parsers, err := Select(format, "", "")
	require.NoError(t, err)
	var clients []string
	facts, err := Read(t.Context(), Config{Sources: []Source{Stream("log", src)}, Parsers: parsers}, func(rec Record) {
		clients = append(clients, string(rec.Client))
	})
	facts.reason, facts.nuls = nil, false
	return clients, facts, err
}

func gzipped(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, s)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func TestReader_LineEnds(t *testing.T) {
	a, b := "a"+record, "b"+record
	cases := map[string]struct {
		log   string
		facts Facts
	}{
		"lf":              {log: a + "\n" + b + "\n", facts: Facts{Lines: 2, Counted: 2}},
		"no last newline": {log: a + "\n" + b, facts: Facts{Lines: 2, Counted: 2}},
		"crlf":            {log: a + "\r\n" + b + "\r\n", facts: Facts{Lines: 2, Counted: 2}},
		"crlf and no end": {log: a + "\r\n" + b + "\r", facts: Facts{Lines: 2, Counted: 2}},
		"blank lines":     {log: "\n\r\n" + a + "\n \t\n" + b + "\n\n", facts: Facts{Lines: 6, Blank: 4, Counted: 2}},
		"bom":             {log: "\xef\xbb\xbf" + a + "\n" + b, facts: Facts{Lines: 2, Counted: 2}},
		"bom of each file": {log: "\xef\xbb\xbf" + a + "\n\xef\xbb\xbf" + b + "\n\xef\xbb\xbf",
			facts: Facts{Lines: 3, Blank: 1, Counted: 2}},
		"nul padding": {log: strings.Repeat("\x00", 3*MaxLine) + a + "\n\x00" + b, facts: Facts{Lines: 2, Counted: 2}},
		"nul line":    {log: a + "\n\x00\x00\n" + b + "\n\x00", facts: Facts{Lines: 4, Blank: 2, Counted: 2}},
		"two gzip members": {log: gzipped(t, a+"\n"+b[:9]) + gzipped(t, b[9:]),
			facts: Facts{Lines: 2, Counted: 2}},
		"empty gzip members": {log: gzipped(t, a+"\n") + strings.Repeat(gzipped(t, ""), 1000) + gzipped(t, b),
			facts: Facts{Lines: 2, Counted: 2}},
		"malformed between": {log: a + "\nwhat\n" + b + "\nwhat", facts: Facts{Lines: 4, Counted: 2,
			Malformed: 2, MalformedLines: []int64{2, 4}, MalformedReason: errNoTimestamp.Error()}},
	}
	for name, c := range cases {
		t.Run("log="+name, func(t *testing.T) {
			c.facts.Format = Combined
			for _, src := range []io.Reader{strings.NewReader(c.log), iotest.OneByteReader(strings.NewReader(c.log))} {
				clients, facts, err := readAll(t, src, Combined)
				require.NoError(t, err)
				assert.Equal(t, []string{"a", "b"}, clients)
				assert.Equal(t, c.facts, facts)
			}
		})
	}
}

func TestReader_LongLines(t *testing.T) {
	fill := func(n int) string { return "a" + record + strings.Repeat("x", n-len("a"+record)) }
	for name, c := range map[string]struct {
		line string
		kept bool
	}{
		"at limit":         {fill(MaxLine) + "\n", true},
		"at limit crlf":    {fill(MaxLine) + "\r\n", true},
		"at limit eof":     {fill(MaxLine), true},
		"beyond":           {fill(MaxLine+1) + "\n", false},
		"beyond crlf":      {fill(MaxLine+1) + "\r\n", false},
		"far beyond":       {fill(3*MaxLine) + "\n", false},
		"far beyond eof":   {fill(3 * MaxLine), false},
		"ten megabytes":    {fill(10*MaxLine) + "\n", false},
		"beyond a buffer":  {fill(readBuffer+1) + "\n", true},
		"exactly a buffer": {fill(readBuffer-1) + "\n", true},
		"exactly a block":  {fill(blockSize-1) + "\n", true},
		"beyond a block":   {fill(blockSize+1) + "\n", true},
	} {
		t.Run("line="+name, func(t *testing.T) {
			log := "first" + record + "\n" + c.line
			if strings.HasSuffix(log, "\n") {
				log += "last" + record
			}
			clients, facts, err := readAll(t, strings.NewReader(log), Combined)
			require.NoError(t, err)
			assert.Equal(t, c.kept, facts.Malformed == 0)
			assert.Equal(t, c.kept, len(clients) > 1 && clients[1] == "a")
			if !c.kept {
				assert.Equal(t, []int64{2}, facts.MalformedLines)
				assert.Equal(t, "longer than 1048576 bytes", facts.MalformedReason)
			}
		})
	}
}

func TestReader_AutoSettlesOnMostOfTheFirstLines(t *testing.T) {
	traefikLine := `{"ClientHost":"t","StartUTC":"2021-12-08T14:02:43.4Z","remote_ip":"n","time":"2021-12-08T14:02:43Z"}`
	nginxLine := `{"remote_ip":"n","time":"` + someTime + `"}`
	combinedLine := "c" + record
	cases := map[string]struct {
		lines   []string
		format  string
		clients []string
		bad     []int64
	}{
		"combined":             {[]string{combinedLine}, Combined, []string{"c"}, nil},
		"nginx":                {[]string{nginxLine}, NginxJSON, []string{"n"}, nil},
		"traefik":              {[]string{traefikLine}, Traefik, []string{"t"}, nil},
		"combined then nginx":  {[]string{combinedLine, nginxLine, combinedLine}, Combined + ", " + NginxJSON, []string{"c", "n", "c"}, nil},
		"noise then traefik":   {[]string{`{"level":"info"}`, "starting", traefikLine, `{"ClientHost":"u","StartUTC":"2021-12-08T14:02:43Z"}`, nginxLine}, Traefik + ", " + NginxJSON, []string{"t", "u", "n"}, []int64{1, 2}},
		"an odd one first":     {[]string{"400 192.0.2.7" + record, combinedLine, combinedLine}, Combined, []string{"c", "c"}, []int64{1}},
		"as many of two":       {[]string{nginxLine, combinedLine}, NginxJSON + ", " + Combined, []string{"n", "c"}, nil},
		"combined inside json": {[]string{`{"log":"` + "c" + record[:40] + `"}`, nginxLine}, NginxJSON, []string{"n"}, []int64{1}},
	}
	for name, c := range cases {
		t.Run("log="+name, func(t *testing.T) {
			clients, facts, err := readAll(t, strings.NewReader(strings.Join(c.lines, "\n")), Auto)
			require.NoError(t, err)
			assert.Equal(t, c.clients, clients)
			assert.Equal(t, c.format, facts.Format)
			assert.Equal(t, c.bad, facts.MalformedLines)
		})
	}
}

func TestReader_RemembersOnlyTheFirstMalformedLines(t *testing.T) {
	log := "a" + record + "\n" + strings.Repeat("what\n", 1000)
	_, facts, err := readAll(t, strings.NewReader(log), Auto)
	require.NoError(t, err)
	assert.EqualValues(t, 1000, facts.Malformed)
	assert.Equal(t, []int64{2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, facts.MalformedLines)
}

func TestReader_Errors(t *testing.T) {
	whole := gzipped(t, strings.Repeat("a"+record+"\n", 1000))
	cases := map[string]struct {
		log, format, err string
	}{
		"empty":      {"", Auto, "the log is empty"},
		"blank":      {"\n\n", Auto, "the log has nothing but blank lines"},
		"empty gzip": {gzipped(t, ""), Auto, "the log is empty"},
		"one bad line": {"\nwhat", Combined,
			"no readable line among 2 (line 2: no [02/Jan/2006:15:04:05 -0700] after the client); expected CLIENT ... [02/Jan/2006:15:04:05 -0700]"},
		"many bad lines": {"1\n2\n3\n4\n", Auto,
			"no readable line among 4 (lines 1, 2, 3, ...: in none of the known formats: combined, vhost-combined, s3, alb, haproxy, envoy, squid, cloudfront, w3c, logfmt, caddy, traefik, nginx-json, cloudflare, gcp, azure, aws-waf, api-gateway, kong, apisix, ecs)"},
		"two bad lines": {"{}\n{}", NginxJSON,
			"no readable line among 2 (lines 1, 2: field remote_ip is not a client); expected a JSON object with remote_ip and time"},
		"cut gzip header": {"\x1f\x8b\x08", Auto, "the gzip data is cut off"},
		"cut gzip":        {whole[:len(whole)-9], Auto, "line 1001: the gzip data is cut off"},
		"gzip then noise": {whole + "noise noise noise", Auto, "line 1001: the gzip data ends, and other data follows: want gzip data only, as from cat A.gz B.gz"},
		"gzip then a bit": {whole + "x", Auto, "line 1001: the gzip data ends, and other data follows: want gzip data only, as from cat A.gz B.gz"},
		"cut second gzip": {whole + "\x1f", Auto, "line 1001: the gzip data is cut off"},
		"no second gzip":  {whole + "\x1f\x8b\x08\x00", Auto, "line 1001: the gzip data is cut off"},
	}
	for name, c := range cases {
		t.Run("log="+name, func(t *testing.T) {
			_, _, err := readAll(t, strings.NewReader(c.log), c.format)
			require.EqualError(t, err, "log: "+c.err)
		})
	}
}

func TestReader_ReadErrorIsNotTheEndOfTheLog(t *testing.T) {
	broken := errors.New("broken")
	_, _, err := readAll(t, iotest.ErrReader(broken), Auto)
	require.ErrorIs(t, err, broken)
	src := io.MultiReader(strings.NewReader("a"+record+"\nb"), iotest.ErrReader(broken))
	clients, _, err := readAll(t, src, Auto)
	require.EqualError(t, err, "log: line 2: broken")
	assert.Equal(t, []string{"a"}, clients)
}

func TestSelect(t *testing.T) {
	for name, c := range map[string]struct {
		format, client, time string
		names                []string
		err                  string
	}{
		"auto": {format: Auto, names: []string{Combined, VhostCombined, S3, ALB, HAProxy, Envoy, Squid, CloudFront, W3C, Logfmt, Caddy,
			Traefik, NginxJSON, Caddy, Envoy, Cloudflare, GCP, Azure, WAF, Gateway, CloudFront, Kong, APISIX, ECS}},
		"auto with fields": {format: Auto, client: "a", time: "b", names: []string{JSON, W3C, Logfmt}},
		"auto, one field":  {format: Auto, client: "a", names: []string{W3C, Logfmt}},
		"json":             {format: JSON, err: "format json needs the names of both the client and the time field"},
		"combined":         {format: Combined, names: []string{Combined}},
		"combined, field":  {format: Combined, time: "b", err: "format combined has no fields to name"},
		"traefik, field":   {format: Traefik, time: "time", names: []string{Traefik}},
		"unknown":          {format: "iis", err: `unknown format "iis": want one of auto, combined, vhost-combined, s3, alb, cloudfront, w3c, haproxy, envoy, nginx-json, caddy, traefik, squid, lighttpd, logfmt, cloudflare, gcp, azure, aws-waf, api-gateway, kong, apisix, ecs, json, or a pattern with $remote_addr and $time_local`},
	} {
		t.Run("case="+name, func(t *testing.T) {
			parsers, err := Select(c.format, c.client, c.time)
			if c.err != "" {
				require.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			var names []string
			for _, p := range parsers {
				names = append(names, p.Name())
			}
			assert.Equal(t, c.names, slices.Compact(names))
		})
	}
}

func TestSelect_FieldsReplaceThoseOfAPreset(t *testing.T) {
	parsers, err := Select(Traefik, "", "time")
	require.NoError(t, err)
	assert.Equal(t, "a JSON object with ClientHost and time", parsers[0].Wants())
}

// clientsAndFacts reads a log in blocks of a size; an error is text.
func clientsAndFacts(t *testing.T, src io.Reader, block int) (clients []string, facts Facts, failure string) {
	parsers, err := Select(Auto, "", "")
	require.NoError(t, err)
	facts, err = Read(t.Context(), Config{Sources: []Source{Stream("log", src)}, Parsers: parsers, block: block, Requests: true}, func(rec Record) {
		clients = append(clients, string(rec.Client))
		assert.GreaterOrEqual(t, rec.Time, int64(0))
		assert.NotEmpty(t, rec.Client)
	})
	if err != nil {
		failure = err.Error()
	}
	facts.reason = nil
	return clients, facts, failure
}

// FuzzRead: whatever a log holds, each line is counted once, as a record, as malformed or as blank, and the
// same whether it comes in one piece or in many.
func FuzzRead(f *testing.F) {
	f.Add([]byte("a"+record+"\r\n\x00b"+record+"\rc"+record+"\n\n\xef\xbb\xbfd"+record), uint16(70))
	f.Add([]byte("#Version: 1.0\n#Fields: date time c-ip\n2026-03-02 09:00:00 192.0.2.1\n#Fields: c-ip time date\n192.0.2.1 09:00:00 2026-03-02\n"), uint16(50))
	f.Add([]byte("\xef\xbb\xbf#Fields: date time c-ip\n2026-03-02 09:00:00 192.0.2.1\n"), uint16(500))
	f.Add([]byte("\x1f\x8b\x08\n\x28\xb5\x2f\xfd\x7fELF\x02\x01\x00\r\n\""), uint16(1))
	f.Add([]byte(`{"remote_ip":"a","time":1}`+"\n{}\n"+`{"remote_ip":"b","time":2}`), uint16(30))
	f.Fuzz(func(t *testing.T, log []byte, block uint16) {
		clients, facts, failure := clientsAndFacts(t, bytes.NewReader(log), 1<<20)
		assert.Equal(t, facts.Lines, facts.Blank+facts.Counted+facts.Malformed)
		assert.Len(t, clients, int(facts.Counted))
		lines := bytes.Count(log, []byte{'\n'})
		if len(log) > 0 && log[len(log)-1] != '\n' {
			lines++
		}
		if !bytes.HasPrefix(log, []byte(gzipMagic)) && !bytes.HasPrefix(log, []byte(zstdMagic)) && facts.Lines > 0 {
			assert.EqualValues(t, lines, facts.Lines)
		}
		if facts.Counted == 0 || !settledBy(t, log, int(block)) {
			return
		}
		againClients, again, againFailure := clientsAndFacts(t, iotest.OneByteReader(bytes.NewReader(log)), int(block)+1)
		assert.Equal(t, clients, againClients)
		assert.Equal(t, facts, again)
		assert.Equal(t, failure, againFailure)
	})
}

// settledBy reports whether the first block of a log tells its format as all of it does.
func settledBy(t *testing.T, log []byte, block int) bool {
	parsers, err := Select(Auto, "", "")
	require.NoError(t, err)
	end := bytes.LastIndexByte(log[:min(block+1, len(log))], '\n') + 1
	one, few, settled := settle(parsers, log[:end])
	all, many, _ := settle(parsers, log)
	return settled && few == many && one[0].Name() == all[0].Name() && one[0].Wants() == all[0].Wants()
}

// TestBlock_LineCostsNoMemory: the lines of a block are parsed in memory that it has.
func TestBlock_LineCostsNoMemory(t *testing.T) {
	parsers, err := Select(Auto, "", "")
	require.NoError(t, err)
	lines := strings.Repeat(`192.0.2.7 - - [02/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 12 "-" "Mozilla/5.0"`+"\n", 100)
	b := &block{data: []byte(lines)}
	b.parsers, b.depths, b.settled = settle(parsers, b.data)
	allocs := testing.AllocsPerRun(10, func() {
		b.lines = b.lines[:0]
		b.parse(false, nil)
	})
	require.Len(t, b.lines, 100)
	require.NoError(t, b.lines[99].bad)
	require.Zero(t, allocs)
}
