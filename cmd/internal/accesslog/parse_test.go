package accesslog

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	someTime  = "17/May/2015:10:05:03 +0000"
	someNanos = 1431857103 * int64(time.Second)
)

type parseCase struct {
	line   string
	client string
	nanos  int64
	err    string
}

func runParseCases(t *testing.T, p Parser, cases map[string]parseCase) {
	t.Helper()
	for name, c := range cases {
		t.Run("line="+name, func(t *testing.T) {
			rec, err := p.Parse([]byte(c.line))
			if c.err != "" {
				require.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.client, string(rec.Client))
			assert.Equal(t, c.nanos, rec.Time)
		})
	}
}

func TestCombined_Parse(t *testing.T) {
	const tail = ` "GET / HTTP/1.1" 200 2326 "-" "agent"`
	noStamp := errNoTimestamp.Error()
	runParseCases(t, combined{}, map[string]parseCase{
		"combined":     {line: "192.0.2.1 - - [" + someTime + "]" + tail, client: "192.0.2.1", nanos: someNanos},
		"common":       {line: "192.0.2.1 - - [" + someTime + `] "GET / HTTP/1.1" 200 -`, client: "192.0.2.1", nanos: someNanos},
		"ipv6":         {line: "2001:db8::1 - - [" + someTime + "]" + tail, client: "2001:db8::1", nanos: someNanos},
		"host":         {line: "www.example.org - - [" + someTime + "]" + tail, client: "www.example.org", nanos: someNanos},
		"open quote":   {line: "192.0.2.1 - - [" + someTime + `] "GET / HTTP/1.1" 200 1 "-" "Mozilla/5.0 (x`, client: "192.0.2.1", nanos: someNanos},
		"cut":          {line: "192.0.2.1 - - [" + someTime + "]", client: "192.0.2.1", nanos: someNanos},
		"tab":          {line: "192.0.2.1\t-\t-\t[" + someTime + "]", client: "192.0.2.1", nanos: someNanos},
		"offset":       {line: "192.0.2.1 - - [17/May/2015:15:35:03 +0530]" + tail, client: "192.0.2.1", nanos: someNanos},
		"fraction":     {line: "192.0.2.1 - - [17/May/2015:10:05:03.000000007 +0000]" + tail, client: "192.0.2.1", nanos: someNanos + 7},
		"nul in agent": {line: "192.0.2.1 - - [" + someTime + "] \"GET / HTTP/1.1\" 200 1 \"-\" \"\x00\"", client: "192.0.2.1", nanos: someNanos},
		"spaced user":  {line: "192.0.2.1 - a b [c] [" + someTime + "]" + tail, client: "192.0.2.1", nanos: someNanos},
		"empty user":   {line: `192.0.2.1 - "" [` + someTime + "]" + tail, client: "192.0.2.1", nanos: someNanos},
		"only a user":  {line: `192.0.2.1 - "" [` + someTime + "]", client: "192.0.2.1", nanos: someNanos},
		"empty request": {line: "192.0.2.1 - - [" + someTime + `] "" [01/Jan/2030:00:00:00 +0000] "-"`,
			client: "192.0.2.1", nanos: someNanos},
		"forged in user": {line: "192.0.2.1 - x [01/Jan/2030:00:00:00 +0000] [" + someTime + "]" + tail,
			client: "192.0.2.1", nanos: someNanos},
		"forged with quote": {line: `192.0.2.1 - x [01/Jan/2030:00:00:00 +0000] \"GET [` + someTime + "]" + tail,
			client: "192.0.2.1", nanos: someNanos},
		"only in request": {line: "192.0.2.1 - - [2015-05-17T10:05:03Z] \"GET /[" + someTime + "] HTTP/1.1\"", err: noStamp},
		"in request too": {line: "192.0.2.1 - - [" + someTime + "] \"GET /[01/Jan/2030:00:00:00 +0000] HTTP/1.1\"",
			client: "192.0.2.1", nanos: someNanos},
		"last instant":   {line: "192.0.2.1 - - [11/Apr/2262:23:47:16 +0000]" + tail, client: "192.0.2.1", nanos: 9223372036 * int64(time.Second)},
		"after 2262":     {line: "192.0.2.1 - - [11/Apr/2262:23:47:17 +0000]" + tail, err: errTimeRange.Error()},
		"first instant":  {line: "192.0.2.1 - - [01/Jan/1970:00:00:00 +0000]" + tail, client: "192.0.2.1"},
		"before 1970":    {line: "192.0.2.1 - - [01/Jan/1970:00:00:00 +0001]" + tail, err: errTimeRange.Error()},
		"empty":          {line: "", err: errNoClient.Error()},
		"leading blank":  {line: " 192.0.2.1 - - [" + someTime + "]" + tail, err: errNoClient.Error()},
		"client only":    {line: "192.0.2.1", err: noStamp},
		"no bracket":     {line: "192.0.2.1 - - " + someTime + tail, err: noStamp},
		"unclosed":       {line: "192.0.2.1 - - [" + someTime, err: noStamp},
		"bad month":      {line: "192.0.2.1 - - [17/Mai/2015:10:05:03 +0000]" + tail, err: noStamp},
		"bad day":        {line: "192.0.2.1 - - [30/Feb/2015:10:05:03 +0000]" + tail, err: noStamp},
		"no zone":        {line: "192.0.2.1 - - [17/May/2015:10:05:03]" + tail, err: noStamp},
		"stamp as first": {line: "[" + someTime + "] 192.0.2.1" + tail, err: noStamp},
	})
}

// TestCombined_ClientOrNothing has the lines that combined leaves alone, and why.
func TestCombined_ClientOrNothing(t *testing.T) {
	const tail = " - - [" + someTime + `] "GET / HTTP/1.1" 200 2326 "-" "agent"`
	vhost, noClient, prefix := errVhost.Error(), errNoClient.Error(), errPrefix.Error()
	runParseCases(t, combined{}, map[string]parseCase{
		"name":                {line: "host.example.org" + tail, client: "host.example.org", nanos: someNanos},
		"name, ident":         {line: "host ident user [" + someTime + "]", client: "host", nanos: someNanos},
		"bracketed":           {line: "[2001:db8::1]" + tail, client: "[2001:db8::1]", nanos: someNanos},
		"host and port":       {line: "www.example.com:80 192.0.2.1" + tail, err: vhost},
		"address and port":    {line: "127.0.1.1:80 192.0.2.1" + tail, err: vhost},
		"host":                {line: "www.example.com 192.0.2.1" + tail, err: vhost},
		"port, no client":     {line: "www.example.com:80" + tail, err: vhost},
		"two":                 {line: "192.0.2.2 192.0.2.1" + tail, err: string(errTwo)},
		"two with ports":      {line: "192.0.2.2:80 192.0.2.1:80" + tail, err: string(errTwo)},
		"list":                {line: "192.0.2.2, 192.0.2.1" + tail, client: "192.0.2.1", nanos: someNanos},
		"list without blanks": {line: "192.0.2.2,192.0.2.1" + tail, client: "192.0.2.1", nanos: someNanos},
		"list of names":       {line: "192.0.2.2, host" + tail, err: string(errList)},
		"list, two":           {line: "192.0.2.2, 192.0.2.1 192.0.2.3" + tail, err: string(errTwo)},
		"dash":                {line: "-" + tail, err: string(errDash)},
		"third":               {line: "nginx |", err: errNoTimestamp.Error()},
		"third is an address": {line: "nginx | 192.0.2.1 [" + someTime + "]", err: noClient},
		"fourth":              {line: "web1 nginx | 192.0.2.1" + tail, err: prefix},
		"one name":            {line: "host [" + someTime + "]", err: noClient},
		"owner and bucket":    {line: "owner bucket [" + someTime + "] 192.0.2.1", err: noClient},
	})
}

func TestVhostCombined_Parse(t *testing.T) {
	const tail = " - - [" + someTime + `] "GET / HTTP/1.1" 200 2326 "-" "agent"`
	noVhost := errNoVhost.Error()
	runParseCases(t, vhostCombined{}, map[string]parseCase{
		"port":             {line: "www.example.com:80 192.0.2.1" + tail, client: "192.0.2.1", nanos: someNanos},
		"port, name":       {line: "www.example.com:80 host" + tail, client: "host", nanos: someNanos},
		"no port":          {line: "www.example.com 192.0.2.1" + tail, client: "192.0.2.1", nanos: someNanos},
		"address and port": {line: "[2001:db8::5]:80 192.0.2.1" + tail, client: "192.0.2.1", nanos: someNanos},
		"forged user":      {line: "www.example.com:80 192.0.2.1 - 10.0.0.1 10.0.0.2 [" + someTime + "]", client: "192.0.2.1", nanos: someNanos},
		"list":             {line: "www.example.com:80 192.0.2.2, 192.0.2.1" + tail, client: "192.0.2.1", nanos: someNanos},
		"list of names":    {line: "www.example.com:80 192.0.2.2, host" + tail, err: string(errList)},
		"time":             {line: "2026-01-24T02:34:00+01:00 stdout 192.0.2.1" + tail, err: noVhost},
		"clock":            {line: "02:34:00 stdout" + tail, err: noVhost},
		"name, address":    {line: "www.example.com:80 web1 192.0.2.1" + tail, err: errPrefix.Error()},
		"no client":        {line: "www.example.com:80" + tail, err: string(errDash)},
		"combined":         {line: "192.0.2.1" + tail, err: noVhost},
		"combined, port":   {line: "192.0.2.1:80" + tail, err: noVhost},
		"combined, name":   {line: "host" + tail, err: noVhost},
		"two":              {line: "192.0.2.2 192.0.2.1" + tail, err: noVhost},
		"two with ports":   {line: "192.0.2.2:80 192.0.2.1:80" + tail, err: noVhost},
		"list alone":       {line: "192.0.2.2, 192.0.2.1" + tail, err: noVhost},
		"dash":             {line: "- 192.0.2.1" + tail, err: noVhost},
		"host only":        {line: "www.example.com:80 [" + someTime + "]", err: noVhost},
		"not a port":       {line: "www.example.com:x host" + tail, err: noVhost},
		"nothing":          {line: "", err: errNoClient.Error()},
	})
}

func TestJSON_Parse(t *testing.T) {
	const at = `"t":"2015-05-17T10:05:03Z"`
	notJSON, noClient, noTime := errNotJSON.Error(), "field c is not a client", "field t is not a time"
	runParseCases(t, newJSON(JSON, "c", "t"), map[string]parseCase{
		"plain":           {line: `{"c":"192.0.2.1",` + at + `}`, client: "192.0.2.1", nanos: someNanos},
		"other order":     {line: `{` + at + `,"x":{"c":"no"},"c":"192.0.2.1"}`, client: "192.0.2.1", nanos: someNanos},
		"spaces":          {line: " \t{ \"c\" : \"192.0.2.1\" , " + at + ` } `, client: "192.0.2.1", nanos: someNanos},
		"number client":   {line: `{"c":90071992547409930,` + at + `}`, client: "90071992547409930", nanos: someNanos},
		"escapes":         {line: `{"c":"a\u00e4\n\"",` + at + `}`, client: "a\u00e4\n\"", nanos: someNanos},
		"invalid utf-8":   {line: "{\"c\":\"a\xff\"," + at + `}`, client: "a\xff", nanos: someNanos},
		"unix number":     {line: `{"c":"a","t":1431857103.000000007}`, client: "a", nanos: someNanos + 7},
		"missing client":  {line: `{` + at + `}`, err: noClient},
		"empty client":    {line: `{"c":"",` + at + `}`, err: noClient},
		"null client":     {line: `{"c":null,` + at + `}`, err: noClient},
		"object client":   {line: `{"c":{"x":1},` + at + `}`, err: noClient},
		"bool client":     {line: `{"c":true,` + at + `}`, err: noClient},
		"missing time":    {line: `{"c":"a"}`, err: noTime},
		"null time":       {line: `{"c":"a","t":null}`, err: noTime},
		"bad time":        {line: `{"c":"a","t":"yesterday"}`, err: "field t: " + errTimeForm.Error()},
		"before 1970":     {line: `{"c":"a","t":-1}`, err: "field t: " + errTimeRange.Error()},
		"not closed":      {line: `{"c":"a",` + at, err: notJSON},
		"trailing":        {line: `{"c":"a",` + at + `} x`, err: notJSON},
		"raw nul":         {line: "{\"c\":\"a\x00\"," + at + `}`, err: notJSON},
		"array":           {line: `["a"]`, err: notJSON},
		"combined":        {line: "192.0.2.1 - - [" + someTime + `] "GET / HTTP/1.1" 200 1`, err: notJSON},
		"deeply nested":   {line: `{"c":` + strings.Repeat("[", MaxLine/2) + strings.Repeat("]", MaxLine/2) + `}`, err: notJSON},
		"empty":           {line: ``, err: notJSON},
		"client is Raw":   {line: `{"c":1e3,` + at + `}`, client: "1e3", nanos: someNanos},
		"duplicate field": {line: `{"c":"a","c":"b",` + at + `}`, client: "a", nanos: someNanos},
	})
}

func TestJSON_FieldNames(t *testing.T) {
	line := []byte(`{"a":{"b":"nested","*":"star"},"x.y":"dotted","x":{"y":"no"},"l":["zero","one"],"@f":"at","t":1431857103}`)
	cases := map[string]string{
		"a.b": "nested", "x.y": "dotted", "l.1": "one", "a.*": "star", "@f": "at",
	}
	for name, client := range cases {
		rec, err := newJSON(JSON, name, "t").Parse(line)
		require.NoError(t, err, name)
		assert.Equal(t, client, string(rec.Client), name)
	}
	for _, name := range []string{"a.?", "*", "a|b", "#", "a.b.c", "@this", "l.2", "missing.x"} {
		_, err := newJSON(JSON, name, "t").Parse(line)
		require.Error(t, err, name)
	}
}

var timeCases = []struct {
	text  string
	nanos int64
	err   error
}{
	{text: "2015-05-17T10:05:03Z", nanos: someNanos},
	{text: "2015-05-17T12:05:03+02:00", nanos: someNanos},
	{text: "2015-05-17T12:05:03.5+0200", nanos: someNanos + int64(time.Second)/2},
	{text: "9999-05-17T12:05:03.5+0200", err: errTimeRange},
	{text: "2015-05-17T10:05:03.123456789Z", nanos: someNanos + 123456789},
	{text: "2015-05-17T10:05:03.1234567899Z", nanos: someNanos + 123456789},
	{text: "2015-05-17T10:05:03.5Z", nanos: someNanos + int64(time.Second)/2},
	{text: someTime, nanos: someNanos},
	{text: "17/May/2015:10:05:03.25 +0000", nanos: someNanos + int64(time.Second)/4},
	{text: "1431857103", nanos: someNanos},
	{text: "1431857103.1", nanos: someNanos + int64(time.Second)/10},
	{text: "1431857103.123456789", nanos: someNanos + 123456789},
	{text: "1431857103.1234567899", nanos: someNanos + 123456789},
	{text: "1431857103123", nanos: someNanos + 123*int64(time.Millisecond)},
	{text: "1431857103123.456789", nanos: someNanos + 123456789},
	{text: "1431857103123456", nanos: someNanos + 123456000},
	{text: "1431857103123456789", nanos: someNanos + 123456789},
	{text: "1.431857103123456789e9", nanos: someNanos + 123456789},
	{text: "1431857103123456789E-9", nanos: someNanos + 123456789},
	{text: "14318571.03e+2", nanos: someNanos},
	{text: "0001431857103", nanos: someNanos},
	{text: "0", nanos: 0},
	{text: "1e-30", nanos: 0},
	{text: "9223372036.854775807", nanos: 1<<63 - 1},
	{text: "9223372036.854775808", nanos: 9223372036854775},
	{text: "9223372036854775807", nanos: 1<<63 - 1},
	{text: "9223372036854775808", err: errTimeRange},
	{text: "1e99", err: errTimeRange},
	{text: "1e999999999999999999999", err: errTimeRange},
	{text: "-1", err: errTimeRange},
	{text: "1969-12-31T23:59:59Z", err: errTimeRange},
	{text: "2262-04-11T23:47:16.854775807Z", nanos: 1<<63 - 1},
	{text: "2262-04-11T23:47:16.854775808Z", err: errTimeRange},
	{text: "9999-12-31T23:59:59Z", err: errTimeRange},
	{text: "2015-05-17 10:05:03", nanos: someNanos},
	{text: "2015-05-17T10:05:03", nanos: someNanos},
	{text: "2015-05-17 10:05:03,5", nanos: someNanos + 5e8},
	{text: "2015-05-17 10:05:03.5 UTC", nanos: someNanos + 5e8},
	{text: "2015-05-17 12:05:03 +0200", nanos: someNanos},
	{text: "2015-05-17T12:05:03+02", nanos: someNanos},
	{text: "2015-05-17", err: errTimeForm},
	{text: "2015-13-17T10:05:03Z", err: errTimeForm},
	{text: "", err: errTimeForm},
	{text: ".5", err: errTimeForm},
	{text: "5.", err: errTimeForm},
	{text: "1.2.3", err: errTimeForm},
	{text: "+5", err: errTimeForm},
	{text: "--5", err: errTimeForm},
	{text: "5e", err: errTimeForm},
	{text: "5e+-1", err: errTimeForm},
	{text: "0x10", err: errTimeForm},
	{text: "1_000", err: errTimeForm},
	{text: "NaN", err: errTimeForm},
	{text: "12:00", err: errTimeForm},
}

func TestParseTime(t *testing.T) {
	for _, c := range timeCases {
		t.Run("time="+c.text, func(t *testing.T) {
			got, err := parseTime(c.text)
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.nanos, got)
		})
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("192.0.2.1 - x [y] [" + someTime + `] "GET / HTTP/1.1" 200 1 "-" "a`))
	f.Add([]byte(`{"ClientHost":"192.0.2.1","StartUTC":"2021-12-08T14:02:43.464763557Z"}`))
	f.Add([]byte(`{"remote_ip":"a\u0000b","time":1431857103.5e0,"x":{"y":[1,{}]}}`))
	f.Add([]byte("[[[[]]]] \x00\xef\xbb\xbf"))
	parsers, err := Select(Auto, "", "")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, p := range parsers {
			rec, err := p.Parse(line)
			if err != nil {
				assert.NotContains(t, err.Error(), "\n")
				continue
			}
			assert.NotEmpty(t, rec.Client)
			assert.GreaterOrEqual(t, rec.Time, int64(0))
			if p.Name() == Combined {
				assert.True(t, strings.HasPrefix(string(line), string(rec.Client)))
			} else if !strings.Contains(string(line), `\`) {
				assert.Contains(t, string(line), string(rec.Client))
			}
		}
	})
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{someTime, "2015-05-17T10:05:03.5Z", "1431857103.25e-3", "-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseTime(s)
		if err != nil {
			assert.Zero(t, n)
			return
		}
		assert.GreaterOrEqual(t, n, int64(0))
		again, err := parseTime(time.Unix(0, n).UTC().Format(time.RFC3339Nano))
		require.NoError(t, err)
		assert.Equal(t, n, again)
	})
}
