package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rules"
)

func field(number protowire.Number, content string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), content))
}

func number(field protowire.Number, n uint64) string {
	return string(protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), n))
}

func readOne(message string) (rules.File, error) {
	return file(&anypb.Any{TypeUrl: TypeURL, Value: []byte(message)})
}

// nested is a config whose last descriptor is so deep.
func nested(depth int) string {
	d := field(1, "k") + field(3, number(1, 2)+number(2, 5))
	for range depth - 1 {
		d = field(1, "k") + field(4, d)
	}
	return field(1, "n") + field(2, "d") + field(3, d)
}

func TestFile_Refuses(t *testing.T) {
	for name, message := range map[string]string{
		"number for text":    number(2, 5),
		"text for number":    field(2, "d") + field(3, field(1, "k")+field(3, field(2, "x"))),
		"number for message": field(2, "d") + number(3, 1),
		"no message":         field(2, "d") + field(3, "\x0a"),
		"no policy":          field(2, "d") + field(3, field(1, "k")+field(3, "\xff")),
		"no replace":         field(2, "d") + field(3, field(1, "k")+field(3, field(5, "\x0a"))),
		"no struct":          field(2, "d") + field(3, field(1, "k")+field(8, "\x0a\x05")),
		"not UTF-8":          field(2, "d") + field(3, field(1, "\xff")),
		"too deep":           nested(maxDepth + 1),
		"field 0":            "\x00\x00",
	} {
		_, err := readOne(field(1, "n") + message)
		require.ErrorContains(t, err, `resource "n"`, name)
	}
	_, err := readOne(nested(maxDepth))
	require.NoError(t, err)
}

// TestFile_AnyOrder of fields is the same file.
func TestFile_AnyOrder(t *testing.T) {
	parts := []string{field(1, "k"), field(2, "v"), field(3, number(2, 5)+number(1, 2)+field(4, "x")), number(7, 1), number(5, 1), field(4, field(1, "z"))}
	want, err := readOne(field(2, "d") + field(1, "n") + field(3, strings.Join(parts, "")))
	require.NoError(t, err)
	slices.Reverse(parts)
	parts[3] = field(3, field(4, "x")+number(1, 2)+number(2, 5))
	got, err := readOne(field(3, strings.Join(parts, "")) + field(1, "n") + field(2, "d"))
	require.NoError(t, err)
	require.Equal(t, string(want.Data), string(got.Data))
}

// TestFile_UnknownUnits are errors of the rules: no limit is left out for them.
func TestFile_UnknownUnits(t *testing.T) {
	for unit := range uint64(12) {
		f, err := readOne(field(1, "n") + field(2, "d") + field(3, field(1, "k")+field(3, number(1, unit)+number(2, 5))))
		require.NoError(t, err)
		set, err := rules.Load([]rules.File{f}, rules.Options{})
		if unit == 0 || unit > uint64(rules.Week) {
			require.ErrorContains(t, err, "d.k: unit is \"UNKNOWN\"; want second,", "%d", unit)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, rules.Unit(unit), set.Rules()[0].Unit())
		require.Empty(t, set.Warnings())
	}
}

// TestFile_Anything neither panics, nor lets a file through that is no YAML.
func TestFile_Anything(t *testing.T) {
	r := seeded.Rand(t)
	whole := []byte(nested(3) + field(3, field(1, "a")+field(2, "b")+field(3, number(3, 1)+field(4, "x")+field(5, field(1, "y")))+number(5, 1)+number(6, 1)+number(7, 1)))
	loaded, refused := 0, 0
	for range 20_000 {
		b := append([]byte(nil), whole...)
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] = byte(r.IntN(256))
		}
		f, err := readOne(string(b[:1+r.IntN(len(b))]))
		if err != nil {
			refused++
			continue
		}
		loaded++
		if _, err := rules.Load([]rules.File{f}, rules.Options{}); err != nil {
			require.NotContains(t, err.Error(), "not YAML", "%q", f.Data)
		}
	}
	require.Greater(t, loaded, 100)
	require.Greater(t, refused, 100)
}

func TestReason(t *testing.T) {
	require.Equal(t, "a\uFFFDb", reason(errors.New("a\xffb")))
	long := reason(errors.New(strings.Repeat("ä", 1<<20)))
	require.Less(t, len(long), 17<<10)
	require.True(t, utf8.ValidString(long))
}

// insisting is the stream of a server that sends a state again whenever it is refused, until it has a better one.
type insisting struct {
	discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	ctx      context.Context
	requests []*discovery.DiscoveryRequest
	better   int // the request from which on the state is fine
	end      int // the request that ends the stream; 0 for none
}

func (s *insisting) Context() context.Context { return s.ctx }

func (s *insisting) Send(r *discovery.DiscoveryRequest) error {
	s.requests = append(s.requests, r)
	return nil
}

func (s *insisting) Recv() (*discovery.DiscoveryResponse, error) {
	if s.ctx.Err() != nil {
		return nil, s.ctx.Err()
	}
	if len(s.requests) == s.end {
		return nil, io.EOF
	}
	state := &discovery.DiscoveryResponse{TypeUrl: TypeURL, VersionInfo: "bad", Nonce: strconv.Itoa(len(s.requests)), Resources: []*anypb.Any{{TypeUrl: TypeURL, Value: []byte(field(1, "n"))}}}
	if len(s.requests) >= s.better {
		state.VersionInfo, state.Resources = "good", nil
	}
	return state, nil
}

// TestConverse_InsistingServer: a state that comes again after its refusal is refused once in a while, and applied
// once.
func TestConverse_InsistingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		applied, accepted := 0, 0
		c := Client{Node: "n", Retry: time.Second, Apply: func(files []rules.File, _ error) error {
			if len(files) > 0 {
				applied++
				return errors.New("no")
			}
			accepted++
			return nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		s := &insisting{ctx: ctx, better: 1 << 20, end: 1000}
		_, err := c.converse(s)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, applied)
		require.Greater(t, len(s.requests), 60)
		require.Less(t, len(s.requests), 210)
		last := s.requests[len(s.requests)-1]
		require.Equal(t, "no", last.ErrorDetail.GetMessage())
		require.Empty(t, last.VersionInfo)

		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		s = &insisting{ctx: ctx, better: 5}
		begin := time.Now()
		s.end = 6
		_, _ = c.converse(s)
		require.Less(t, time.Since(begin), 10*time.Second)
		require.Equal(t, 1, applied, "the same state, over another connection")
		require.Equal(t, 1, accepted)
		last = s.requests[5]
		require.Nil(t, last.ErrorDetail)
		require.Equal(t, "good", last.VersionInfo)
	})
}

// TestTake_AppliesNothingTwice: an answer is applied unless it says what the last one said, whether that has been put into
// force or not.
func TestTake_AppliesNothingTwice(t *testing.T) {
	applied := 0
	c := Client{Apply: func(files []rules.File, bad error) error {
		applied++
		if bad == nil && len(files) > 1 {
			return errors.New("too many")
		}
		return bad
	}}
	resources := func(names ...string) (out []*anypb.Any) {
		for _, name := range names {
			out = append(out, &anypb.Any{TypeUrl: TypeURL, Value: []byte(field(1, name))})
		}
		return out
	}
	none := []*anypb.Any{}
	other := []*anypb.Any{{TypeUrl: "other"}}
	for i, step := range []struct {
		version   string
		resources []*anypb.Any
		applied   bool
		refused   string
	}{
		{"1", none, true, ""},
		{"1", none, false, ""},
		{"2", none, false, ""},
		{"2", other, true, `a resource of type "other"`},
		{"2", other, false, `a resource of type "other"`},
		{"3", other, false, `a resource of type "other"`},
		{"3", []*anypb.Any{{TypeUrl: "third"}}, true, `a resource of type "third"`},
		{"3", none, true, ""},
		{"4", resources("b", "a"), true, "too many"},
		{"5", resources("a", "b"), false, "too many"}, // in another order
		{"5", resources("a"), true, ""},
	} {
		before := applied
		refused := c.take(&discovery.DiscoveryResponse{TypeUrl: TypeURL, VersionInfo: step.version, Resources: step.resources})
		require.Equal(t, step.applied, applied > before, "step %d", i)
		if step.refused == "" {
			require.NoError(t, refused, "step %d", i)
		} else {
			require.ErrorContains(t, refused, step.refused, "step %d", i)
		}
	}
}

// TestRun_Waits longer and longer, up to a bound, and never at the same times as others.
func TestRun_Waits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c := Client{Server: "h:1", TLS: TLS{On: true, CA: "/nowhere"}, Retry: time.Second, RetryMax: 8 * time.Second,
			Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		c.Run(ctx)
		var pauses []time.Duration
		for line := range strings.Lines(log.String()) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), "next_try_in=")
			d, err := time.ParseDuration(text)
			require.NoError(t, err, line)
			pauses = append(pauses, d)
		}
		require.Greater(t, len(pauses), 40)
		different := map[time.Duration]bool{}
		for i, d := range pauses {
			base := min(time.Second<<min(i, 10), 8*time.Second)
			require.GreaterOrEqual(t, d, base/2)
			require.LessOrEqual(t, d, base+base/2+1)
			different[d] = true
		}
		require.Greater(t, len(different), len(pauses)/2)
	})
}
