package accesslog

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestParser_Request: what each format says of a request, also where strangers have written it.
func TestParser_Request(t *testing.T) {
	const ncsa = "192.0.2.1 - %u [" + someTime + "] "
	agent := func(s string) http.Header { return http.Header{"User-Agent": {s}} }
	owner := strings.Repeat("ab", 32)
	for line, want := range map[string]Request{
		ncsa + `"GET /a?b HTTP/1.1" 200 2326 "http://x/" "Mozilla/5.0 (X)"`: {
			Method: "GET", Target: "/a?b", Status: "200", Header: http.Header{"User-Agent": {"Mozilla/5.0 (X)"}, "Referer": {"http://x/"}}},
		ncsa + `"POST / HTTP/2.0" 204 -`:                          {Method: "POST", Target: "/", Status: "204"},
		ncsa + `"GET /" 200 1`:                                    {Method: "GET", Target: "/", Status: "200"},
		ncsa + `"-" 408 - "-" "-"`:                                {Status: "408"},
		ncsa + `"\x16\x03\x01 x" 400 157 "-" "-"`:                 {Status: "400"},
		ncsa + `"GET /a b HTTP/1.1" 400 1`:                        {Method: "GET", Target: "/a b", Status: "400"},
		ncsa + `"GET /a b c" 200 1`:                               {Method: "GET", Target: "/a b c", Status: "200"},
		ncsa + `"GET /a "b" 2 c HTTP/1.0" 200 - "-" "x "y" z"`:    {Method: "GET", Target: `/a "b" 2 c`, Status: "200", Header: agent(`x "y`)},
		ncsa + `"GET /"><a href="x HTTP/1.0 " 404 1`:              {Method: "GET", Target: `/"><a href="x`, Status: "404"},
		ncsa + `"GET /a "b" c`:                                    {},
		ncsa + `"GET  HTTP/1.1" 400 1`:                            {Status: "400"},
		ncsa + `"GET /\"q\"\x22\\ HTTP/1.1" 200 1 "-" "a\"b\xe4"`: {Method: "GET", Target: `/"q""\`, Status: "200", Header: agent("a\"b\xe4")},
		ncsa + `"GET / HTTP/1.1" 200 1 "-" "cut`:                  {Method: "GET", Target: "/", Status: "200", Header: agent("cut")},
		ncsa + `"GET / HTTP/1.1" 200 1 - curl`:                    {Method: "GET", Target: "/", Status: "200"},
		ncsa + `"GET /x`:                                          {Method: "GET", Target: "/x"},
		ncsa + `"GET /x\`:                                         {Method: "GET", Target: `/x\`},
		ncsa:                                                      {},
		ncsa + `"GET http://a.example:80/x HTTP/1.1" 200 1`:       {Method: "GET", Target: "http://a.example:80/x", Host: "a.example:80", Status: "200"},
		ncsa + `"CONNECT a.example:443 HTTP/1.1" 200 1`:           {Method: "CONNECT", Host: "a.example:443", Status: "200"},
		`192.0.2.1 - ann lee [` + someTime + `] "GET / HTTP/1.1" 401 1`: {
			Method: "GET", Target: "/", User: "ann lee", Status: "401"},
		`192.0.2.1 - "" [` + someTime + `] "GET / HTTP/1.1" 401 1`: {Method: "GET", Target: "/", Status: "401"},
		`www.example.org:443 192.0.2.1 - ann [` + someTime + `] "GET / HTTP/1.1" 200 1`: {
			Method: "GET", Target: "/", Host: "www.example.org:443", User: "ann", Status: "200"},
		owner + ` bucket [` + someTime + `] 192.0.2.1 arn:x 3E57 REST.GET.OBJECT k "GET /k?x=1 HTTP/1.1" 200 - 7 7 41 40 "-" "S3 \"C\"" - id= SigV4 AES Auth bucket.s3.example TLSv1.2 - -`: {
			Method: "GET", Target: "/k?x=1", Host: "bucket.s3.example", User: "arn:x", Status: "200", Header: agent(`S3 "C"`)},
		owner + ` bucket [` + someTime + `] 192.0.2.1 - 3E57 S3.EXPIRE.OBJECT k "-" - - - - - - "-" "-"`: {},

		`192.0.2.1:33317 [` + someTime[:20] + `.655] f b/s 0/0/0/0/1 200 73 - - ---- 1/1/0/0/0 0/0 {agent #22q#22} "GET /a#23b?#22#zz#2 HTTP/1.1"`: {
			Method: "GET", Target: `/a#b?"#zz#2`, Status: "200"},
		`[2015-05-17T10:05:03.310Z] "GET /a\x41 HTTP/2" 204 - 154 0 226 100 "192.0.2.1" "x\y" "cc21" "a.example" "10.0.2.1:80"`: {
			Method: "GET", Target: `/a\x41`, Host: "a.example", Status: "204",
			Header: http.Header{"User-Agent": {`x\y`}, "X-Request-Id": {"cc21"}, "X-Forwarded-For": {"192.0.2.1"}}},

		`{"request":{"client_ip":"192.0.2.1","method":"GET","host":"a.example:8443","uri":"/x?y","headers":{"User-Agent":["curl/8"],"x-api-key":["k","l"]}},"user_id":"ann","status":200,"ts":1}`: {
			Method: "GET", Target: "/x?y", Host: "a.example:8443", User: "ann", Status: "200", Header: http.Header{"User-Agent": {"curl/8"}, "X-Api-Key": {"k", "l"}}},
		`{"ClientHost":"192.0.2.1","StartUTC":"2021-12-08T14:02:43Z","RequestMethod":"PUT","RequestPath":"/x?y","RequestHost":"a.example","ClientUsername":"-","DownstreamStatus":404,"OriginStatus":200,"request_User-Agent":"Nikto","request_X-Api-Key":"k"}`: {
			Method: "PUT", Target: "/x?y", Host: "a.example", Status: "404", Header: http.Header{"User-Agent": {"Nikto"}, "X-Api-Key": {"k"}}},
		`{"remote_addr":"192.0.2.1","time_iso8601":"2021-12-08T14:02:43+00:00","request_method":"GET","request_uri":"/a","request":"POST /b HTTP/1.1","http_host":"a.example","remote_user":"ann","status":"200","request_time":"0.1","http_user_agent":"curl","http_x_api_key":"k","http_referer":"-"}`: {
			Method: "GET", Target: "/a", Host: "a.example", User: "ann", Status: "200", Header: http.Header{"User-Agent": {"curl"}, "X-Api-Key": {"k"}, "Host": {"a.example"}}},
		`{"remote_ip":"192.0.2.1","time":"25/Oct/2015:04:11:25 +0100","remote_user":"-","request":"GET /x HTTP/1.1","response":200,"referrer":"-","agent":"Mozilla"}`: {
			Method: "GET", Target: "/x", Status: "200", Header: agent("Mozilla")},
		`{"remote_ip":"192.0.2.1","time":1,"request":7,"status":{},"agent":["x"],"host":null}`: {},
	} {
		line = strings.ReplaceAll(line, "%u", "-")
		parsers, err := Select(Auto, "", "")
		require.NoError(t, err)
		var got *Request
		_, err = Read(t.Context(), Config{Sources: []Source{Stream("log", strings.NewReader(line))}, Parsers: parsers, Requests: true}, func(rec Record) {
			got = rec.Request
		})
		require.NoError(t, err, line)
		assert.Equal(t, want, *got, line)
	}
}

// FuzzRequest: whatever a line says, it is read, and nothing in it is a method that is none.
func FuzzRequest(f *testing.F) {
	f.Add("192.0.2.1 - - [" + someTime + `] "GET /\x2` + "\\")
	f.Add("a:1 192.0.2.1 - - [" + someTime + `] "GET / HTTP/1.1" 1 "`)
	f.Add(`{"remote_ip":"a","time":1,"request":"GET http:// HTTP/1.1","http_":"x","request_":"y"}`)
	f.Add(strings.Repeat("a", 64) + " b [" + someTime + `] c "" " "`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, p := range known("", "") {
			if _, err := p.Parse([]byte(line)); err != nil {
				continue
			}
			r := p.Request([]byte(line))
			if _, ok := p.(jsonLines); !ok && r.Method != "" && !isMethod(r.Method) {
				t.Fatalf("%q", r.Method)
			}
		}
	})
}
