package original

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPathAndHost(t *testing.T) {
	for uri, want := range map[string]string{
		"": "", "/": "/", "*": "/*", "?x": "/", "/a?b=/c": "/a", "a": "/a", "http://h": "/", "http://h/a/": "/a", "/..//./a/../../b": "/b",
		"/a%2Fb": "/a/b", "/%zz": "/%zz", "/http://x/y": "/http:/x/y", "/a%3Fb": "/a?b",
		"http://h?u=http://x/y": "/", "?u=http://x/y": "/", "http://h?u/y": "/", "http://h#u/y": "/", "x:/a": "/a", "x:///a": "/a", "X.1:/a/": "/a",
		"h:80": "/h:80", "/x:/a": "/x:/a", ":/a": "/:/a",
	} {
		assert.Equal(t, want, Path(uri), uri)
	}
	for host, want := range map[string]string{"": "", "A.b:80": "a.b", "[::1]:80": "::1", "h.": "h", "[": "["} {
		assert.Equal(t, want, Host(host), host)
	}
}

func TestRequest(t *testing.T) {
	r := Request("GET", "A.example:80", "http://b.example//a/../b%20c?x=1&y#z", nil)
	assert.Equal(t, []string{"GET", "a.example", "/b c", "x=1&y"}, []string{r.Method, r.Host, r.URL.Path, r.URL.RawQuery})
	assert.Equal(t, "/b%20c?x=1&y", r.URL.RequestURI())
	r = Request("", "", "", nil)
	assert.Equal(t, []string{"", "", "", ""}, []string{r.Method, r.Host, r.URL.Path, r.URL.RawQuery})
}
