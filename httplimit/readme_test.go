package httplimit_test

import (
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// The server is in the README, word for word.

func Example_server() {
	mux := http.NewServeMux()

	perClient := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10).WithBurst(50)}))
	byIP := sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{})) // behind a proxy: name it here
	limit := sluice.Must(httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "per-client", Limiter: perClient, Key: byIP}},
		Headers:  httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11},
	}))
	log.Fatal(http.ListenAndServe("localhost:8080", limit.Handler(mux))) // chi: router.Use(limit.Handler)
}

func Example_client() {
	transport := sluice.Must(httplimit.NewTransport(nil, httplimit.TransportConfig{
		Limiter:    sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10)})),
		MaxWait:    time.Minute,
		MaxRetries: 3,
	}))
	client := &http.Client{Transport: transport}

	_ = client
}

func TestREADME_HasTheExamples(t *testing.T) {
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for name, lines := range map[string]int{"Example_server": 7} {
		_, body, ok := strings.Cut(string(source), "func "+name+"() {\n")
		require.True(t, ok)
		body, _, ok = strings.Cut(body, "\n}\n")
		require.True(t, ok)
		var shown string
		for _, part := range strings.Split(body, "\n\n") {
			if len(part) > len(shown) {
				shown = part
			}
		}
		shown = strings.ReplaceAll(strings.TrimPrefix(shown, "\t"), "\n\t", "\n")
		assert.Equal(t, lines, 1+strings.Count(shown, "\n"), "lines of %s", name)
		assert.Contains(t, string(readme), "```go\n"+shown+"\n```\n", "%s is not in the README", name)
	}
}

// The page on attacks names tests. All of them exist.
func TestATTACKS_NamesTests(t *testing.T) {
	page, err := os.ReadFile("ATTACKS.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	judging, err := filepath.Glob("../internal/policies/*_test.go") // by which this package judges
	require.NoError(t, err)
	files = append(files, judging...)
	var tests strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		tests.Write(source)
	}
	names := regexp.MustCompile("`((?:Test|Fuzz|require)[A-Za-z0-9_]+)`").FindAllSubmatch(page, -1)
	assert.Greater(t, len(names), 60)
	for _, name := range names {
		assert.Contains(t, tests.String(), "\nfunc "+string(name[1])+"(")
	}
}
