package rls

import (
	"bytes"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-go/sluice/rls/holdpb"
	"github.com/sluice-go/sluice/rules"
)

// allocated is how many bytes f allocates, with what others allocate meanwhile.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestBounds_JSON: a body of many small descriptors or entries is refused before it is decoded.
func TestBounds_JSON(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	most := w.options.bodyBytes()
	of := func(begin, each, end string) string {
		return begin + strings.Repeat(each, (most-len(begin)-len(end))/len(each)) + strings.TrimPrefix(each, ",") + end
	}
	for name, body := range map[string]string{
		"descriptors": of(`{"domain":"d","descriptors":[`, `{},`, `{}]}`)[0:],
		"nulls":       of(`{"domain":"d","descriptors":[`, `null,`, `null]}`),
		"entries":     of(`{"domain":"d","descriptors":[{"entries":[`, `{},`, `{}]}]}`),
		"spaced":      of(`{"domain":"d","id":"\",\\","descriptors" : [ {"entries":[`, "{ } ,", `{}]}]}`),
		"after text":  of(`{"domain":"d","descriptors":[{"entries":[{"key":"]}\\\"","value":"["}]},`, `{},`, `{}]}`),
		"lists":       of(`{"descriptors":[{"entries":[]},`, `{"entries":[]},`, `{}]}`),
	} {
		body = body[:min(len(body), most)]
		t.Run(name, func(t *testing.T) {
			n := allocated(func() { require.Equal(t, 400, serve(w.JSON(), "POST", body).Code) })
			require.Less(t, n, uint64(5*most), "the body, while it grows, and what the test makes")
			var got *httptest.ResponseRecorder
			n = allocated(func() { got = post(t, w.Holds(), "/hold", body) })
			require.Equal(t, 400, got.Code)
			require.Less(t, n, uint64(5*most))
		})
	}
}

// TestBounds_JSONFits: what is within the bounds passes, to the last descriptor and entry.
func TestBounds_JSONFits(t *testing.T) {
	o := Options{MaxDescriptors: 3, MaxEntries: 2}
	const e = `{"key":"a,[{\"","value":"}]\\"}`
	full := `{"entries":[` + e + `,` + e + `],"limit":{"unit":"DAY","requestsPerUnit":1},"hitsAddend":"1"}`
	for body, fits := range map[string]bool{
		``: true, `[`: true, `]]]`: true, `"`: true, `{"descriptors":[]}`: true,
		`{"descriptors":[` + full + `,` + full + `,` + full + `],"domain":"x,y"}`:                   true,
		`{"descriptors":[` + full + `,` + full + `,` + full + `,{}]}`:                               false,
		`{"descriptors":[` + full + `,{"entries":[` + e + `,` + e + `,` + e + `]}]}`:                false,
		`{"domain":"","descriptors":[{"entries":[{},{}]},{"entries":[{},{}]},{"entries":[{},{}]}]}`: true,
	} {
		err := o.jsonFits([]byte(body))
		require.Equal(t, fits, err == nil, "%s: %v", body, err)
	}
}

// TestBounds_Wire: the same over gRPC, by each way that decodes messages of package proto; also if the message is none
// after all.
func TestBounds_Wire(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{DynamicMetadata: true})
	most := w.MessageBytes()
	require.Equal(t, 273<<10, most, "as SERVE.md has it")
	require.Equal(t, 585<<10, w.options.bodyBytes(), "as REFERENCE.md has it")
	require.Equal(t, 1<<30, New(w.engine, Options{MaxText: math.MaxInt, MaxDescriptors: math.MaxInt, MaxEntries: math.MaxInt}).MessageBytes())
	for name, text := range map[string]string{
		"descriptors":  strings.Repeat("\x12\x00", most/2),
		"entries":      "\x12\x80\x80\x10" + strings.Repeat("\x0a\x00", 1<<17),
		"no message":   strings.Repeat("\x12\x00", most/2-1) + "\x12",
		"not UTF-8":    strings.Repeat("\x12\x00", most/2-2) + "\x0a\x01\xff",
		"other fields": strings.Repeat("\x12\x00\x1a\x00", most/4),
	} {
		for _, into := range []proto.Message{new(pb.RateLimitRequest), new(holdpb.ReserveRequest), new(holdpb.CommitRequest), new(holdpb.ExtendRequest), new(holdpb.ReleaseRequest)} {
			n := allocated(func() {
				require.Contains(t, []codes.Code{codes.InvalidArgument, codes.Internal}, status.Code(w.unpack(text, into)), name)
			})
			require.Less(t, n, uint64(2*most), "%s of %T", name, into)
		}
	}
	conn := dial(t, w.Service, NewHealth())
	raw := strings.Repeat("\x12\x00", 257)
	for _, method := range []string{pb.RateLimitService_ShouldRateLimit_FullMethodName, "/" + holdService + "/Reserve", "/" + kuadrantService + "/Commit"} {
		in := new(pb.RateLimitRequest)
		in.ProtoReflect().SetUnknown([]byte(raw))
		err := conn.Invoke(t.Context(), method, in, new(pb.RateLimitResponse))
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, "257 descriptors; want at most 256")
	}
}

// TestCodec: messages of others are left to the codec of package proto.
func TestCodec(t *testing.T) {
	c := codec{encoding.GetCodecV2(grpcproto.Name)}
	data, err := proto.Marshal(request(one("k", "v")))
	require.NoError(t, err)
	var got pb.RateLimitRequest
	require.NoError(t, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &got))
	require.Equal(t, "k", got.Descriptors[0].Entries[0].Key)
}

// TestBounds_Busy: large bodies that come at a time are bounded, small ones come all the same, and so is what is decoded.
func TestBounds_Busy(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	large := `{"domain":"d","descriptors":[{"entries":[{"key":"ten","value":"` + strings.Repeat("x", 2*smallBody) + `"}]}]}`
	const small = `{"domain":"d","descriptors":[{"entries":[{"key":"ten","value":"x"}]}]}`
	codes := func(body string) (out [2]int) {
		out[0] = serve(w.JSON(), "POST", body).Code
		got := post(t, w.Holds(), "/hold", body)
		if out[1] = got.Code; out[1] == 503 {
			require.Equal(t, "1", got.Header().Get("Retry-After"))
			require.Contains(t, got.Body.String(), "too many large requests")
		}
		return out
	}
	require.Equal(t, [2]int{200, 200}, codes(large))
	for _, r := range []*room{w.bodies, w.decoding} {
		free := r.free
		require.True(t, r.try(free), "what was taken has been given back")
		r.waiting = waitingRoom
		require.Equal(t, [2]int{503, 503}, codes(large))
		require.Equal(t, [2]int{200, 200}, codes(small))
		r.waiting = 0
		r.give(free)
	}
	require.Equal(t, [2]int{200, 200}, codes(large))
	require.Equal(t, bodyRoom, w.bodies.free)
	require.Equal(t, decodingRoom, w.decoding.free)
}

// TestRoom: who waits gets room when it is given back, and who would be one too many is refused.
func TestRoom(t *testing.T) {
	r := newRoom(10)
	require.NoError(t, r.take(8, 5))
	require.False(t, r.try(3))
	got := make(chan error)
	go func() { got <- r.take(5, 5) }()
	for {
		r.mutex.Lock()
		waiting := r.waiting
		r.mutex.Unlock()
		if waiting == 5 {
			break
		}
		runtime.Gosched()
	}
	require.ErrorIs(t, r.take(3, 5), errBusy)
	r.give(8)
	require.NoError(t, <-got)
	require.Equal(t, 5, r.free)
}

// TestRoom_Order: who waits first gets room first, so that small requests never overtake a large one.
func TestRoom_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(10)
		require.NoError(t, r.take(6, 100))
		var order []int
		for _, n := range []int{10, 1, 2} {
			go func() {
				assert.NoError(t, r.take(n, 100))
				order = append(order, n)
			}()
			synctest.Wait()
		}
		require.Empty(t, order, "4 are free, and the first one needs 10")
		r.give(6)
		synctest.Wait()
		require.Equal(t, []int{10}, order)
		require.False(t, r.try(1))
		r.give(1)
		synctest.Wait()
		r.give(9)
		synctest.Wait()
		require.Equal(t, []int{10, 1, 2}, order)
		require.Equal(t, 7, r.free)
		require.Zero(t, r.waiting)
	})
}

// TestBounds_LateBody: a body that does not come gets 408 after Options.MessageTime.
func TestBounds_LateBody(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{MessageTime: 20 * time.Millisecond})
	mux := http.NewServeMux()
	mux.Handle("/json", w.JSON())
	mux.Handle("/", w.Holds())
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{"/json", "/settle"} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n"+strings.Repeat(" ", 9000))
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(answer, []byte("HTTP/1.1 408 ")), "%s", answer)
	}
	require.Equal(t, bodyRoom, w.bodies.free)
}
