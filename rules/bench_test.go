package rules

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// manyRules is a domain of n rules, a tenth of them patterns.
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		star := ""
		if i%10 == 0 {
			star = "*"
		}
		fmt.Fprintf(&b, "- key: key%d\n  value: value%d%s\n  rate_limit:\n    unit: minute\n    requests_per_unit: 1000000000\n", i/10, i, star)
	}
	return b.String()
}

func BenchmarkDecide(b *testing.B) {
	descriptors := func(n int) []Descriptor {
		out := make([]Descriptor, n)
		for i := range out {
			out[i] = describe(fmt.Sprintf("key%d=value%d", i, i*10+1))
		}
		return out
	}
	for _, rules := range []int{1000, 100_000} {
		set := mustLoad(b, manyRules(rules))
		e, err := New(set, Config{})
		require.NoError(b, err)
		for _, n := range []int{1, 4, 10} {
			b.Run(fmt.Sprintf("rules=%d/descriptors=%d", rules, n), func(b *testing.B) {
				b.ReportAllocs()
				req := Request{Domain: "d", Descriptors: descriptors(n)}
				var resp Response
				for b.Loop() {
					if err := e.Decide(&req, &resp); err != nil || resp.Code != OK {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkDecideParallel(b *testing.B) {
	e, err := New(mustLoad(b, manyRules(1000)), Config{})
	require.NoError(b, err)
	b.RunParallel(func(pb *testing.PB) {
		req := Request{Domain: "d", Descriptors: []Descriptor{describe("key1=value11")}}
		var resp Response
		for pb.Next() {
			_ = e.Decide(&req, &resp)
		}
	})
}

func BenchmarkPattern(b *testing.B) {
	p := newPattern("/api/*/v1")
	for b.Loop() {
		p.fits("/api/users/42/v1")
	}
}

func BenchmarkLoad(b *testing.B) {
	text := manyRules(10_000)
	for b.Loop() {
		mustLoad(b, text)
	}
}

func BenchmarkSwap(b *testing.B) {
	set := mustLoad(b, manyRules(10_000))
	e, err := New(set, Config{})
	require.NoError(b, err)
	for b.Loop() {
		require.NoError(b, e.Swap(set))
	}
}

// BenchmarkReload loads 10,000 rules again and again while calls are decided, and tells how long the
// slowest of them took: that waits for the garbage collector, which takes a processor for up to half
// the time for which it has been running. Beside it is a goroutine that keeps a processor busy
// without garbage, since the slowest call beside that is the machine's.
func BenchmarkReload(b *testing.B) {
	text := manyRules(10_000)
	e, err := New(mustLoad(b, text), Config{})
	require.NoError(b, err)
	busy := make([]byte, 1<<20)
	for _, c := range []struct {
		name string
		work func()
	}{
		{"reload", func() { require.NoError(b, e.Swap(mustLoad(b, text))) }},
		{"busy", func() { sha256.Sum256(busy) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			done, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-done:
						return
					default:
						c.work()
					}
				}
			}()
			req := Request{Domain: "d", Descriptors: []Descriptor{describe("key1=value11")}}
			var resp Response
			times := make([]time.Duration, 0, 1<<20)
			for b.Loop() {
				begin := time.Now()
				_ = e.Decide(&req, &resp)
				times = append(times, time.Since(begin))
			}
			close(done)
			<-ended
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)-1])/1e6, "slowest-ms")
			b.ReportMetric(float64(times[len(times)-1-len(times)/10_000])/1e6, "p99.99-ms")
		})
	}
}
