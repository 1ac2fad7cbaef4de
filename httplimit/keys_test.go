package httplimit

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

func TestByHeader(t *testing.T) {
	f := sluice.Must(ByHeader("x-api-key"))
	for value, want := range map[string]string{
		"abc": "abc", " \tabc\t ": "abc", "a b": "a b", "ABC": "ABC", "\u00a0abc": "\u00a0abc",
		strings.Repeat("k", MaxKeyLen): strings.Repeat("k", MaxKeyLen),
	} {
		require.Equal(t, want, keyOf(t, f, fromPeer("", "X-Api-Key", value)))
	}
	requireKeyError(t, f, fromPeer(""), ErrNoKey)
	requireKeyError(t, f, &http.Request{}, ErrNoKey)
	requireKeyError(t, f, fromPeer("", "X-Api-Key", ""), ErrNoKey)
	requireKeyError(t, f, fromPeer("", "X-Api-Key", " \t"), ErrNoKey)
	requireKeyError(t, f, fromPeer("", "X-Api-Key", strings.Repeat("k", MaxKeyLen+1)), ErrKeyTooLong)
	requireKeyError(t, f, fromPeer("", "X-Api-Key", strings.Repeat("k", 1<<20)), ErrKeyTooLong)
	for _, second := range []string{"other", "mine", ""} {
		requireKeyError(t, f, fromPeer("", "X-Api-Key", "mine", "X-Api-Key", second), ErrBadKey)
	}
	require.EqualError(t, keyError(f, fromPeer("")), "httplimit: no key: no header X-Api-Key")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = f(fromPeerAPIKey) }))
}

var fromPeerAPIKey = fromPeer("", "X-Api-Key", " abc ")

func keyError(f KeyFunc, r *http.Request) error {
	_, err := f(r)
	return err
}

func TestKeys_NamesAreValidated(t *testing.T) {
	byHeader := func(name string) error { _, err := ByHeader(name); return err }
	byCookie := func(name string) error { _, err := ByCookie(name); return err }
	const marks = "!#$%&'*+-.^_`|~"
	for _, name := range []string{"", " ", "a b", "a:b", "a,b", "a;b", "a=b", "a\n", "\u00e9", "a\x00", "(a)", `"a"`, "[a]", "a@b", "a{"} {
		require.EqualError(t, byHeader(name), "httplimit: ByHeader: "+strconv.Quote(name)+" is no name; want letters, digits and any of "+marks+", as in X-Api-Key")
		require.EqualError(t, byCookie(name), "httplimit: ByCookie: "+strconv.Quote(name)+" is no name; want letters, digits and any of "+marks+", as in session")
		require.ErrorAs(t, byHeader(name), new(*ConfigError))
		require.ErrorAs(t, byCookie(name), new(*ConfigError))
	}
	for _, name := range []string{marks, "azAZ09", "__Host-session"} {
		require.NoError(t, byHeader(name))
		require.NoError(t, byCookie(name))
	}
	require.EqualError(t, byHeader("host"), "httplimit: ByHeader: Host is not among the headers of a http.Request; want a function that returns Request.Host")
	for _, name := range []string{"X-Forwarded-For", "forwarded"} {
		require.EqualError(t, byHeader(name), "httplimit: ByHeader: "+http.CanonicalHeaderKey(name)+" is written by the client as well as by proxies; want ByRemoteIP with TrustedProxies")
	}
	require.EqualError(t, byHeader("authorization"), "httplimit: ByHeader: Authorization has many spellings of the same credentials; want ByBearerToken or ByBasicAuthUser")
	require.EqualError(t, byHeader("cookie"), "httplimit: ByHeader: Cookie has all cookies, to which a client can add any; want ByCookie")
	require.PanicsWithError(t, byHeader("").Error(), func() { sluice.Must(ByHeader("")) })
}

func TestByPattern(t *testing.T) {
	f := ByPattern()
	keys := make(chan string, 2)
	note := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key, err := f(r)
			if err != nil {
				require.ErrorIs(t, err, ErrNoKey)
				key = "none"
			}
			keys <- key
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", note(http.NotFoundHandler()))
	around := note(mux)
	for _, target := range []string{"/items/1", "/items/2?x=y", "/items/%31", "/items/a%2fb"} {
		around.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, target, nil))
		require.Equal(t, "none", <-keys, "around the mux")
		require.Equal(t, "GET /items/{id}", <-keys, target)
	}
	requireKeyError(t, f, &http.Request{}, ErrNoKey)
	requireKeyError(t, f, &http.Request{Pattern: strings.Repeat("/", MaxKeyLen+1)}, ErrKeyTooLong)
}

// fixed returns a function that always has this key.
func fixed(key string) KeyFunc {
	return func(*http.Request) (string, error) { return key, nil }
}

func join(tb testing.TB, parts ...string) string {
	tb.Helper()
	funcs := make([]KeyFunc, len(parts))
	for i, p := range parts {
		funcs[i] = fixed(p)
	}
	return keyOf(tb, sluice.Must(Join(funcs...)), fromPeer(""))
}

func TestJoin_DifferentTuplesAreDifferentKeys(t *testing.T) {
	rng := seeded.Rand(t)
	pieces := []string{"a", "1", "2", "11", ":", "1:", "2:", "\x00", "|", "1:a", "0:"}
	seen := map[string]string{}
	for range 30000 {
		tuple := make([]string, 1+rng.IntN(3))
		for i := range tuple {
			for range rng.IntN(4) {
				tuple[i] += pieces[rng.IntN(len(pieces))]
			}
		}
		quoted := strconv.Itoa(len(tuple))
		for _, s := range tuple {
			quoted += " " + strconv.Quote(s)
		}
		key := join(t, tuple...)
		if other, ok := seen[key]; ok {
			require.Equal(t, other, quoted)
		}
		seen[key] = quoted
	}
	require.Greater(t, len(seen), 5000)
	require.Equal(t, "1:a2:bc", join(t, "a", "bc"))
	require.NotEqual(t, join(t, "a", "b"), join(t, "b", "a"))
}

func TestJoin_Errors(t *testing.T) {
	_, err := Join()
	require.EqualError(t, err, "httplimit: Join: no functions, so all requests would have one key; want at least one")
	require.ErrorAs(t, err, new(*ConfigError))
	_, err = Join(ByPattern(), nil)
	require.EqualError(t, err, "httplimit: Join: function 2 of 2 is nil; want a KeyFunc")

	wrong := errors.New("wrong")
	f := sluice.Must(Join(fixed("a"), func(*http.Request) (string, error) { return "b", wrong }, func(*http.Request) (string, error) { panic("after an error") }))
	key, err := f(fromPeer(""))
	require.Empty(t, key)
	require.Same(t, wrong, err)
	requireKeyError(t, sluice.Must(Join(fixed("a"), sluice.Must(ByHeader("X")))), fromPeer(""), ErrNoKey)

	const prefix = len("4091:")
	require.Len(t, join(t, strings.Repeat("k", MaxKeyLen-prefix)), MaxKeyLen)
	requireKeyError(t, sluice.Must(Join(fixed(strings.Repeat("k", MaxKeyLen-prefix+1)))), fromPeer(""), ErrKeyTooLong)
	requireKeyError(t, sluice.Must(Join(fixed(strings.Repeat("k", 3000)), fixed(strings.Repeat("k", 3000)))), fromPeer(""), ErrKeyTooLong)
	requireKeyError(t, sluice.Must(Join(fixed(strings.Repeat("k", MaxKeyLen-prefix)), fixed(""))), fromPeer(""), ErrKeyTooLong)
}

func TestJoin_DoesNotKeepTheCallersSlice(t *testing.T) {
	funcs := []KeyFunc{fixed("a"), fixed("b")}
	f := sluice.Must(Join(funcs...))
	funcs[1] = nil
	require.Equal(t, "1:a1:b", keyOf(t, f, fromPeer("")))
	require.Equal(t, 1.0, testing.AllocsPerRun(100, func() { _, _ = f(nil) }))
}

// An error for a missing key costs nothing, so that whoever sends none is no load.
func TestKeys_MissingKeysDoNotAllocate(t *testing.T) {
	r := fromPeer("10.0.0.1:1")
	strict := IPConfig{TrustedProxies: prefixes("10.0.0.1/32"), Header: "X-Forwarded-For", RequireHeader: true}
	for name, f := range map[string]KeyFunc{
		"header": sluice.Must(ByHeader("X")), "basic": ByBasicAuthUser(), "bearer": ByBearerToken(), "pattern": ByPattern(), "cookie": sluice.Must(ByCookie("x")), "ip": sluice.Must(ByRemoteIP(strict)),
	} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = f(r) }), name)
	}
}

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

// The tokens of RFC 7515, appendix A.1, and RFC 7516, appendix A.3.
const (
	jws = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9" +
		".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ" +
		".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	jwe = "eyJhbGciOiJBMTI4S1ciLCJlbmMiOiJBMTI4Q0JDLUhTMjU2In0" +
		".6KB707dM9YTIgHtLvtgWQ8mKwboJW3of9locizkDTHzBC2IlrT1oOQ" +
		".AxY8DCtDaGlsbGljb3RoZQ" +
		".KDlTtXchhZTGufMYmOYGS4HffxPSUrfmqCHXaI9wOGY" +
		".U0m_YmjN04DJvceFICbCVQ"
)

// Libraries take a signature in many encodings, so that whoever has one JWT could have a budget
// for each: PyJWT 2.8 all of these, and jsonwebtoken for Node those by the last character.
func TestByBearerToken_AJWTHasOneKey(t *testing.T) {
	f := ByBearerToken()
	for _, token := range []string{jws, jwe, "ewogImFsZyI6Im5vbmUifQ.e30.", "eyJhIjoxfQ..dBjf", "eyJhIjox.fQ==", "ey.a.b.c", "key.a.b="} {
		require.Equal(t, token, keyOf(t, f, fromPeer("", "Authorization", "Bearer "+token)))
	}
	last := func(token string) string { return token[:len(token)-1] }
	dot := strings.LastIndexByte(jws, '.') + 1
	for _, token := range []string{
		jws + "=", jws + "==", jws + "~", last(jws) + "l", last(jws) + "n", jws[:dot] + "~~~~" + jws[dot:], jws[:dot] + "!" + jws[dot:],
		strings.ReplaceAll(jws, "-", "+"), strings.ReplaceAll(jws, "_", "/"), "ew" + jws[2:] + "=",
		jwe + "=", last(jwe) + "R", strings.Replace(jwe, "1oOQ.", "1oOR.", 1), strings.Replace(jwe, "ZQ.", "ZQ==.", 1), strings.Replace(jwe, "OGY.", "OGZ.", 1),
	} {
		requireKeyError(t, f, fromPeer("", "Authorization", "Bearer "+token), ErrBadKey)
	}
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
	r := fromPeer("", "Authorization", "bearer  "+jws)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = f(r) }))
}

// The protocols trim white space differently, which makes neither another key nor none.
func TestKeys_SpacesMakeNoOtherKeyOverAnyProtocol(t *testing.T) {
	for _, tt := range []struct {
		f            KeyFunc
		header, want string
		values       []string
	}{
		{sluice.Must(ByHeader("X-Api-Key")), "X-Api-Key", "abc", []string{"abc", " abc", "abc \t", "\t abc"}},
		{ByBasicAuthUser(), "Authorization", "bob", []string{basic("bob:x"), " " + basic("bob:x"), "\t" + basic("bob:x") + " ", "Basic \t" + basic("bob:x")[6:]}},
		{ByBearerToken(), "Authorization", "abc", []string{"Bearer abc", " Bearer abc", "\tbearer\tabc\t"}},
		{sluice.Must(ByCookie("s")), "Cookie", "abc", []string{"s=abc", " s=abc ", "\ts\t=\tabc\t", `s= "abc";`}},
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
	f := sluice.Must(ByCookie("session"))
	for cookies, want := range map[string]string{
		"session=abc":                               "abc",
		`session="abc"`:                             "abc",
		"session= abc":                              "abc",
		`session= "abc" `:                           "abc",
		"session=\tabc\t; a=b":                      "abc",
		"session=a,b,c":                             "a,b,c",
		`session="a b,c"`:                           "a b,c",
		"a=b c; session=abc; d=/e?session=f":        "abc",
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
	for _, made := range []string{"a=", "(=", " =", "= ", "a ="} { // one pass; a look back from each sign takes 2 to 20 s
		requireKeyError(t, f, fromPeer("", "Cookie", strings.Repeat(made, maxCookieBytes/len(made))), ErrNoKey)
	}
	require.EqualError(t, keyError(f, fromPeer("")), "httplimit: no key: no cookie session")
	r := fromPeer("", "Cookie", `a=b; session= "abc"; c=d`)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = f(r) }))
}

// Whatever else some application could take for the cookie, in whatever order, it is not
// counted under a second one that the client makes up.
func TestByCookie_WhatAnApplicationCouldReadOtherwiseIsRefused(t *testing.T) {
	f := sluice.Must(ByCookie("session"))
	for _, real := range []string{
		"session=abc", "session=", "session= real", `session= "real"`, `session=real\`, `session="re"al"`, "session=re\x80al", "session=\u00e9", "session=real\x7f",
		"Session=real", "SESSION=real", "session =real", "session\t=real", "\u00a0session=real", "\xa0session=real", "\x85session\x85=real", `"session"=real`,
		"a=b,session=real", "a=b, session =real", `a="b; session=real"`, "a,session=real",
		"a=b session=real", "a=b\tsession =real", "a session=real", "session=abc session=real", "session=real a=b", "a=b a=b session=real a=b",
	} {
		for _, lines := range [][]string{{real + "; session=r1"}, {"session=r1; " + real}, {"session=r1;" + real + "; x=y"}, {real, "session=r1"}, {"session=r1", real}} {
			r := fromPeer("")
			r.Header["Cookie"] = lines
			requireKeyError(t, f, r, ErrBadKey)
		}
	}
	for _, alone := range []string{"session=abc a=1", "session=abc secure", "a=b session=abc", "Session=real", "\xa0session=real", "session\u00a0=real", `"session"=real`, "a=b,session=real", "session=\xa0real"} {
		requireKeyError(t, f, fromPeer("", "Cookie", alone), ErrBadKey)
	}
	f = sluice.Must(ByCookie("my_session"))
	for _, real := range []string{"my.session", "my session", "my[session", "MY.session", "my.session[]"} {
		requireKeyError(t, f, fromPeer("", "Cookie", real+"=abc; my_session=r1"), ErrBadKey)
		requireKeyError(t, f, fromPeer("", "Cookie", "my_session=r1; "+real+"=abc"), ErrBadKey)
	}
	require.Equal(t, "abc", keyOf(t, f, fromPeer("", "Cookie", "my-session=a; mysession=b; my_session=abc; session=d")))
	require.Equal(t, "abc", keyOf(t, sluice.Must(ByCookie("my.session")), fromPeer("", "Cookie", "my_session=a; my.session=abc")))
}
