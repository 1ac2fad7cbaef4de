package httplimit

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func basic(userPassword string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(userPassword))
}

func TestByBasicAuthUser(t *testing.T) {
	f := ByBasicAuthUser()
	bob := basic("bob:secret")
	for header, want := range map[string]string{
		bob:                         "bob",
		" " + bob:                   "bob",
		"\t" + bob + " \t":          "bob",
		"Basic  \t" + bob[6:]:       "bob",
		"Basic\t" + bob[6:]:         "bob",
		basic("bob:"):               "bob",
		basic("bob:a:b"):            "bob",
		basic("Bob:x"):              "Bob",
		basic(" bob:x"):             " bob",
		"bASIC" + basic("bob:")[5:]: "bob",
		basic(strings.Repeat("b", MaxKeyLen) + ":"): strings.Repeat("b", MaxKeyLen),
	} {
		require.Equal(t, want, keyOf(t, f, fromPeer("", "Authorization", header)))
	}
	for _, header := range []string{"", " ", basic(":secret"), basic(":"), "Bearer abc", "Basically abc", "Digest " + bob[6:], " Digest", "x" + bob} {
		requireKeyError(t, f, fromPeer("", "Authorization", header), ErrNoKey)
	}
	for _, header := range []string{
		basic(""), basic("bob"), "Basic", "Basic ", "\tBasic", "Basic !", "bASIC Ym9iOg", bob + "," + bob, bob + " x",
		"\xa0" + bob, "\u00a0" + bob, "\x85" + bob, "Basic\xa0" + bob[6:], "Basic," + bob[6:], `"Basic" ` + bob[6:], "," + bob, "=" + bob, "Basic:" + bob[6:],
	} {
		requireKeyError(t, f, fromPeer("", "Authorization", header), ErrBadKey)
	}
	requireKeyError(t, f, fromPeer(""), ErrNoKey)
	requireKeyError(t, f, &http.Request{}, ErrNoKey)
	requireKeyError(t, f, fromPeer("", "Authorization", basic("bob:"), "Authorization", basic("eve:")), ErrBadKey)
	requireKeyError(t, f, fromPeer("", "Authorization", "", "Authorization", basic("eve:")), ErrBadKey)
	requireKeyError(t, f, fromPeer("", "Authorization", basic(strings.Repeat("b", MaxKeyLen+1)+":")), ErrKeyTooLong)
	huge := fromPeer("", "Authorization", basic("bob:"+strings.Repeat("p", 1<<20)))
	requireKeyError(t, f, huge, ErrKeyTooLong)
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = f(huge) }), "it must not be decoded")
	require.EqualError(t, keyError(f, fromPeer("")), "httplimit: no key: no user name of Basic authentication")
}

func TestByBearerToken(t *testing.T) {
	f := ByBearerToken()
	for header, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", " BEARER \t abc\t": "abc", "Bearer a.b-c_d~e+f/g==": "a.b-c_d~e+f/g==", "Bearer sk:1,2": "sk:1,2",
		"Bearer " + strings.Repeat("k", MaxKeyLen): strings.Repeat("k", MaxKeyLen),
	} {
		require.Equal(t, want, keyOf(t, f, fromPeer("", "Authorization", header)))
	}
	for _, header := range []string{"", "Basic abc", "Bearers abc", "Negotiate"} {
		requireKeyError(t, f, fromPeer("", "Authorization", header), ErrNoKey)
	}
	for _, header := range []string{"Bearer", "Bearer ", "Bearer a b", "Bearer a\xa0", "Bearer a\x7f", "Bearer\xa0a", "\xa0Bearer a", "Bearer, a"} {
		requireKeyError(t, f, fromPeer("", "Authorization", header), ErrBadKey)
	}
	requireKeyError(t, f, fromPeer(""), ErrNoKey)
	requireKeyError(t, f, fromPeer("", "Authorization", "Bearer a", "Authorization", "Bearer a"), ErrBadKey)
	requireKeyError(t, f, fromPeer("", "Authorization", "Bearer "+strings.Repeat("k", MaxKeyLen+1)), ErrKeyTooLong)
	requireKeyError(t, f, fromPeer("", "Authorization", "Bearer "+strings.Repeat("k", 1<<20)), ErrKeyTooLong)
	require.EqualError(t, keyError(f, fromPeer("")), "httplimit: no key: no Bearer token")
	r := fromPeer("", "Authorization", "bearer  abc")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = f(r) }))
}

// The protocols trim white space differently, which makes neither another key nor none.
func TestKeys_SpacesMakeNoOtherKeyOverAnyProtocol(t *testing.T) {
	for _, tt := range []struct {
		f            KeyFunc
		header, want string
		values       []string
	}{
		{Must(ByHeader("X-Api-Key")), "X-Api-Key", "abc", []string{"abc", " abc", "abc \t", "\t abc"}},
		{ByBasicAuthUser(), "Authorization", "bob", []string{basic("bob:x"), " " + basic("bob:x"), "\t" + basic("bob:x") + " ", "Basic \t" + basic("bob:x")[6:]}},
		{ByBearerToken(), "Authorization", "abc", []string{"Bearer abc", " Bearer abc", "\tbearer\tabc\t"}},
		{Must(ByCookie("s")), "Cookie", "abc", []string{"s=abc", " s=abc ", "\ts\t=\tabc\t", `s= "abc";`}},
	} {
		for _, h2 := range []bool{false, true} {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key, err := tt.f(r)
				if err != nil {
					key = err.Error()
				}
				_, _ = io.WriteString(w, strconv.Itoa(r.ProtoMajor)+key)
			}))
			s.EnableHTTP2 = h2
			s.StartTLS()
			for _, value := range tt.values {
				r, err := http.NewRequest(http.MethodGet, s.URL, nil)
				require.NoError(t, err)
				r.Header.Set(tt.header, value)
				res, err := s.Client().Do(r)
				require.NoError(t, err)
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				want := "1" + tt.want
				if h2 {
					want = "2" + tt.want
				}
				require.Equal(t, want, string(body), "%q", value)
			}
			s.Close()
		}
	}
}

func TestByCookie(t *testing.T) {
	f := Must(ByCookie("session"))
	for cookies, want := range map[string]string{
		"session=abc":                               "abc",
		`session="abc"`:                             "abc",
		"session= abc":                              "abc",
		`session= "abc" `:                           "abc",
		"session=\tabc\t; a=b":                      "abc",
		"session=a b,c":                             "a b,c",
		"a=b; session=abc; c=d":                     "abc",
		"xsession=x; session=abc; session2=y":       "abc",
		"$session=x;session.=y;session=abc":         "abc",
		"session =abc":                              "abc",
		"session; session=abc":                      "abc",
		"a=session; session=abc=session":            "abc=session",
		"session=" + strings.Repeat("k", MaxKeyLen): strings.Repeat("k", MaxKeyLen),
	} {
		require.Equal(t, want, keyOf(t, f, fromPeer("", "Cookie", cookies)), cookies)
	}
	require.Equal(t, "abc", keyOf(t, f, fromPeer("", "Cookie", "a=b", "Cookie", "session=abc")))
	for _, cookies := range []string{"", "session", "session=", "session= ", `session=""`, "a=session=abc", "sessions=a\x01b", ";;;", ",", "="} {
		requireKeyError(t, f, fromPeer("", "Cookie", cookies), ErrNoKey)
	}
	for _, cookies := range []string{
		"session=a\x01b", "a=b;session=a\x01b", " session =\x7f", `session=a"b`, `session=\`, `session="`, `session="a`, `session=a\tb`, "session=\u00e9", "session=\x80",
	} {
		requireKeyError(t, f, fromPeer("", "Cookie", cookies), ErrBadKey)
	}
	requireKeyError(t, f, fromPeer(""), ErrNoKey)
	requireKeyError(t, f, &http.Request{}, ErrNoKey)
	requireKeyError(t, f, fromPeer("", "Cookie", "session="+strings.Repeat("k", MaxKeyLen+1)), ErrKeyTooLong)
	requireKeyError(t, f, fromPeer("", "Cookie", strings.Repeat("a", 1<<20)+"; session=abc"), ErrKeyTooLong)
	pad := strings.Repeat("a", maxCookieBytes-len("session=abc"))
	require.Equal(t, "abc", keyOf(t, f, fromPeer("", "Cookie", "session=abc", "Cookie", pad)))
	requireKeyError(t, f, fromPeer("", "Cookie", "session=abc", "Cookie", pad+"a"), ErrKeyTooLong)
	require.EqualError(t, keyError(f, fromPeer("")), "httplimit: no key: no cookie session")
	r := fromPeer("", "Cookie", `a=b; session= "abc"; c=d`)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = f(r) }))
}

// Whatever else some application could take for the cookie, in whatever order, it is not
// counted under a second one that the client makes up.
func TestByCookie_WhatAnApplicationCouldReadOtherwiseIsRefused(t *testing.T) {
	f := Must(ByCookie("session"))
	for _, real := range []string{
		"session=abc", "session=", "session= real", `session= "real"`, `session=real\`, `session="re"al"`, "session=re\x80al", "session=\u00e9", "session=real\x7f",
		"Session=real", "SESSION=real", "session =real", "session\t=real", "\u00a0session=real", "\xa0session=real", "\x85session\x85=real", `"session"=real`,
		"a=b,session=real", "a=b, session =real", `a="b; session=real"`, "a,session=real",
	} {
		for _, lines := range [][]string{{real + "; session=r1"}, {"session=r1; " + real}, {"session=r1;" + real + "; x=y"}, {real, "session=r1"}, {"session=r1", real}} {
			r := fromPeer("")
			r.Header["Cookie"] = lines
			requireKeyError(t, f, r, ErrBadKey)
		}
	}
	for _, alone := range []string{"Session=real", "\xa0session=real", "session\u00a0=real", `"session"=real`, "a=b,session=real", "session=\xa0real"} {
		requireKeyError(t, f, fromPeer("", "Cookie", alone), ErrBadKey)
	}
}
