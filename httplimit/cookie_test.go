package httplimit

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
