package service

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/rules"
)

// oneProblem waits for the one line of log about a fault.
func (r *running) oneProblem(texts ...string) {
	r.Helper()
	servetest.Eventually(r.T, "a line of log", func() bool { return len(r.log.Problems()) > 0 })
	lines := r.log.Problems()
	require.Len(r, lines, 1)
	for _, text := range texts {
		assert.Contains(r, lines[0], text)
	}
}

// TestFault_HalfWrittenRules: a file that ends in the middle is refused with one line, and the old rules
// stay until it is whole.
func TestFault_HalfWrittenRules(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, someRules)
	r := start(t, "--rules", filepath.Dir(file), "--manual-clock")
	conn := r.dial()
	assert.Equal(t, 1, remaining(t, conn, "two"))
	whole := strings.ReplaceAll(someRules, "requests_per_unit: 2}", "requests_per_unit: 9}")
	half := whole[:strings.Index(whole, "requests_per_unit: 9}")+len("requests_per_unit: ")]
	write(t, file, half)
	r.oneProblem("the rules are refused, and the old ones stay", file+":4:")
	assert.Equal(t, 0, remaining(t, conn, "two"))
	assert.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, conn, one("two", "x")).OverallCode)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(whole[len(half):])
	require.NoError(t, err)
	require.NoError(t, f.Close())
	r.waitFor("generation 2, ")
	assert.Equal(t, 5, remaining(t, conn, "two"), "and the counts, too")
	assert.Len(t, r.log.Problems(), 1)
}

// TestFault_DirectoryVanishes: without a directory the rules that came from it stay.
func TestFault_DirectoryVanishes(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := filepath.Dir(rulesFile(t, someRules))
	r := start(t, "--rules", dir, "--manual-clock")
	conn := r.dial()
	assert.Equal(t, 1, remaining(t, conn, "two"))
	require.NoError(t, os.Rename(dir, dir+".away"))
	r.oneProblem("the rules are refused, and the old ones stay", dir+": no such file or directory")
	r.signal(r.reload) // asks again, and gets the same answer
	servetest.Eventually(t, "a second refusal", func() bool { return len(r.log.Problems()) == 2 })
	assert.Equal(t, 0, remaining(t, conn, "two"))
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 200, code)
	require.NoError(t, os.Rename(dir+".away", dir))
	r.waitFor("generation 2, ")
	assert.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, conn, one("two", "x")).OverallCode)
	assert.Len(t, r.log.Problems(), 2)
}

// stuckHandler is a log that does not come back from one message.
type stuckHandler struct {
	slog.Handler
	message        string
	reached, leave chan struct{}
}

func (h *stuckHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		close(h.reached)
		<-h.leave
	}
	return h.Handler.Handle(ctx, r)
}

// TestFault_StuckReload: rules that take for ever to load, as those on a disk that does not answer, keep the
// service neither from ending nor from saving its counts.
func TestFault_StuckReload(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	args := []string{"--rules", rulesFile(t, someRules), "--state", state, "--manual-clock"}
	stuck := &stuckHandler{message: "rules loaded", reached: make(chan struct{}), leave: make(chan struct{})}
	defer close(stuck.leave)
	r := startLogging(t, func(h slog.Handler) slog.Handler {
		stuck.Handler = h
		return stuck
	}, args...)
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	r.signal(r.reload)
	<-stuck.reached
	r.end()
	assert.Equal(t, 0, remaining(t, start(t, args...).dial(), "two"))
}

// TestFault_ReloadStorm: rules are replaced again and again under load, every tenth time by broken ones.
// Each call is answered by rules that were whole, all of them are counted, and each load has one line of
// log. Changes that come while rules load are one: the last ones are in force without another signal.
func TestFault_ReloadStorm(t *testing.T) {
	versions := depth.Of(300, 300, 1000) // 100 a second for 10 s, as fast as they are taken
	rulesOf := func(limit int) string {
		return fmt.Sprintf("domain: d\ndescriptors:\n- {key: day, rate_limit: {unit: day, requests_per_unit: %d}}\n", 1_000_000+limit)
	}
	file := rulesFile(t, rulesOf(0))
	r := start(t, "--rules", filepath.Dir(file), "--manual-clock")
	conn := r.dial()
	next := filepath.Join(t.TempDir(), "next.yaml")
	var calls atomic.Int64
	done := make(chan struct{})
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for last := uint32(0); ; {
				select {
				case <-done:
					return
				default:
				}
				resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), one("day", "x"))
				if !assert.NoError(t, err) || !assert.NotNil(t, resp.Statuses[0].CurrentLimit) {
					return
				}
				calls.Add(1)
				limit := resp.Statuses[0].CurrentLimit.RequestsPerUnit
				assert.GreaterOrEqual(t, limit, last, "older rules after newer ones")
				assert.NotEqual(t, uint32(7), limit%10, "rules that are refused")
				last = limit
			}
		})
	}
	for i := 1; i <= versions; i++ {
		text := rulesOf(i)
		if i%10 == 7 {
			text += "- {key: day}\n"
		}
		require.NoError(t, os.Rename(write(t, next, text), file))
		r.signal(r.reload)
	}
	r.waitFor(fmt.Sprintf("requests_per_unit=%d", 1_000_000+versions))
	close(done)
	load.Wait()
	require.False(t, t.Failed())
	require.Positive(t, calls.Load())
	look := one("day", "x")
	look.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	assert.EqualValues(t, 1_000_000+versions-int(calls.Load()), ask(t, conn, look).Statuses[0].LimitRemaining)
	got := r.scrape()
	loaded, refused := int(got[`sluice_config_reloads_total{result="success"}`]), int(got[`sluice_config_reloads_total{result="error"}`])
	t.Logf("%d versions, %d loads, %d refused, %d calls", versions, loaded, refused, calls.Load())
	assert.LessOrEqual(t, loaded+refused, 1+2*versions, "one for each signal and each change at most")
	assert.Equal(t, loaded-1, r.lines("rules loaded"), "the first load is that of the start")
	assert.Equal(t, refused, r.lines("the rules are refused, and the old ones stay"))
	assert.Len(t, r.log.Problems(), refused)
}

// still is a service without ports, and its log.
func still(t *testing.T, content string, args ...string) (*server, *servetest.Log) {
	t.Helper()
	c, log := configure(t, append(args, "--rules", rulesFile(t, content), "--manual-clock")...), new(servetest.Log)
	require.NoError(t, c.Check())
	s, err := newServer(c, slog.New(slog.NewTextHandler(log, nil)), nil)
	require.NoError(t, err)
	return s, log
}

// flood asks for n values of a key, from one on, all of which must pass.
func flood(t *testing.T, s *server, key string, from, n int) {
	t.Helper()
	const batch = 250
	req := &pb.RateLimitRequest{Domain: "d"}
	for i := range batch {
		req.Descriptors = append(req.Descriptors, descriptor(key, fmt.Sprint(i)))
	}
	for i := from; i < from+n; i += batch {
		for j, d := range req.Descriptors {
			d.Entries[0] = &common.RateLimitDescriptor_Entry{Key: key, Value: fmt.Sprint("value-", i+j)}
		}
		resp, err := s.service.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, pb.RateLimitResponse_OK, resp.OverallCode)
	}
}

// heap is what is in use, and not garbage.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what was in a pool goes in the second one
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFault_Flood: values without end take no more memory than --max-keys of them, whatever becomes
// of further keys, and one line says that limits are weaker. With SLUICE_DEPTH=full it is 3 million.
func TestFault_Flood(t *testing.T) {
	const keys = 20_000
	values := depth.Of(100_000, 100_000, 3_000_000)
	for overflow, column := range map[string]string{"evict-soonest": "dropped", "admit-new": "not_tracked"} {
		t.Run(overflow, func(t *testing.T) {
			s, log := still(t, strings.Replace(someRules, "domain: d", "domain: d\nsluice: {overflow: "+overflow+"}", 1), "--max-keys", fmt.Sprint(keys))
			s.notice(time.Unix(0, 0))
			require.Empty(t, log.String())
			flood(t, s, "day", 0, 2*keys)
			before := heap()
			flood(t, s, "day", 2*keys, values)
			grown := heap() - before
			t.Logf("%d values: %d bytes more than after %d", values, grown, 2*keys)
			assert.Less(t, grown, int64(values), "a byte a value")
			stats := s.engine.Stats()
			tracked := stats.Keys[rules.Day]
			assert.LessOrEqual(t, tracked, keys)
			assert.GreaterOrEqual(t, tracked, keys/2)
			assert.Equal(t, 2*keys+values, int(stats.Evicted+stats.Untracked)+tracked)

			s.notice(time.Unix(10, 0))
			flood(t, s, "day", 2*keys+values, keys) // more than there can be room for
			s.notice(time.Unix(20, 0))
			require.Len(t, log.Problems(), 1, "once an hour")
			assert.Contains(t, log.Problems()[0], "there are more keys than --max-keys")
			assert.NotContains(t, log.Problems()[0], " "+column+"=0")
			flood(t, s, "day", 3*keys+values, keys)
			s.notice(time.Unix(3610, 0))
			require.Len(t, log.Problems(), 2)
			s.notice(time.Unix(9000, 0))
			require.Len(t, log.Problems(), 2, "it is over")
			runtime.KeepAlive(s)
		})
	}
}

// TestFault_DetailedValues: 10,000 values under detailed_metric make 2,000 series, and all hits are
// counted.
func TestFault_DetailedValues(t *testing.T) {
	s, log := still(t, "domain: d\ndescriptors:\n- {key: each, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}\n")
	flood(t, s, "each", 0, 1000)
	s.notice(time.Unix(0, 0))
	require.Empty(t, log.Problems())
	flood(t, s, "each", 1000, 9000)
	flood(t, s, "each", 0, 1000)
	total, series := 0, s.engine.Series()
	for _, x := range series {
		total += int(x.Total)
	}
	assert.Equal(t, 11_000, total)
	assert.Len(t, series, 2000+2, "the rule's own, and other")
	s.notice(time.Unix(10, 0))
	s.notice(time.Unix(20, 0))
	require.Len(t, log.Problems(), 1)
	assert.Contains(t, log.Problems()[0], "there are --metrics-max-series series with values of requests")
}
