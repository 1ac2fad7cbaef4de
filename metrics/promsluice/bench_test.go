package promsluice

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// BenchmarkScrape is of 1,000 limiters that have been used: by the collector alone, as a registry takes it, and over HTTP.
func BenchmarkScrape(b *testing.B) {
	registry := prometheus.NewRegistry()
	var all []*Collector
	for i := range 1000 {
		l := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10), Stats: true}))
		for key := range 10 {
			l.Key(fmt.Sprint(key)).Take(1)
		}
		c := collectorOf(fmt.Sprintf("limiter-%d", i), l)
		all = append(all, c)
		registry.MustRegister(c)
	}
	b.Run("collect", func(b *testing.B) {
		for b.Loop() {
			out := make(chan prometheus.Metric, 1000)
			go func() {
				for _, c := range all {
					c.Collect(out)
				}
				close(out)
			}()
			for range out {
			}
		}
	})
	b.Run("gather", func(b *testing.B) {
		for b.Loop() {
			_, err := registry.Gather()
			require.NoError(b, err)
		}
	})
	b.Run("http", func(b *testing.B) {
		handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
		for b.Loop() {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			require.Equal(b, http.StatusOK, w.Code)
		}
	})
}

// BenchmarkAllow has a limiter in turns without a collector, and in one that is scraped all the while.
func BenchmarkAllow(b *testing.B) {
	for _, stats := range []bool{false, true} {
		b.Run(fmt.Sprintf("stats=%v", stats), func(b *testing.B) {
			l := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(1_000_000_000), Stats: stats}))
			c, registry := collectorOf("login", l), prometheus.NewRegistry()
			const calls = 20_000
			var took [2][]time.Duration
			for round := 0; b.Loop(); round++ {
				for turn := range 2 {
					i := (round + turn) % 2
					if registry.Unregister(c); i == 1 {
						registry.MustRegister(c)
					}
					_, err := registry.Gather()
					require.NoError(b, err)
					begin := time.Now()
					for range calls {
						l.Allow("user:42")
					}
					took[i] = append(took[i], time.Since(begin))
				}
			}
			var medians [2]float64
			for i, t := range took {
				slices.Sort(t)
				medians[i] = float64(t[len(t)/2]) / calls
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(medians[0], "ns/alone")
			b.ReportMetric(medians[1], "ns/collected")
			b.ReportMetric(medians[1]/medians[0], "ratio")
		})
	}
}
