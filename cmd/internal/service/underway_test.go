package service

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// TestUnderWay_Share: connections with no more than each may always have take nothing from others: any number of clients
// can watch the health, and another client with many streams is answered at once, and stays. Time is the bubble's.
func TestUnderWay_Share(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := still(t, someRules)
		require.NoError(t, s.newGRPC())
		l := bufconn.Listen(1 << 12)
		go func() { _ = s.grpc.Serve(l) }()
		t.Cleanup(s.grpc.Stop)
		watch := func(streams int) func(io.Writer) {
			return func(w io.Writer) {
				_, _ = io.WriteString(w, greeting+settings)
				for i := range streams {
					id := uint32(2*i + 1)
					_, _ = io.WriteString(w, frame(headersFrame, 4, id, callHeaders("/grpc.health.v1.Health/Watch", ""))+frame(dataFrame, endStream, id, messageHead(0)))
				}
			}
		}
		quiet := hostile(t, l, 60, true, watch(int(s.underWay.least/callBytes)))
		synctest.Wait()
		assert.Zero(t, s.underWay.bytes.Load(), "nothing is above what a connection may always have")
		proxy := hostile(t, l, 1, true, watch(40))
		begin := time.Now()
		burst(t, l, 40)
		assert.Zero(t, time.Since(begin))
		time.Sleep(time.Hour)
		assert.NotContains(t, log.String(), "more than its share")
		assert.Positive(t, s.underWay.bytes.Load(), "the 40 streams are there")
		quiet()
		proxy()
		synctest.Wait()
		assert.Zero(t, s.underWay.bytes.Load())
		assert.Zero(t, s.underWay.connections.Load())
	})
}

// TestUnderWay_Headers: a client that begins as many calls as the service promises it, and then sends their messages, is answered at
// once. Time is the bubble's.
func TestUnderWay_Headers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := still(t, someRules)
		require.NoError(t, s.newGRPC())
		l := bufconn.Listen(1 << 12)
		go func() { _ = s.grpc.Serve(l) }()
		t.Cleanup(s.grpc.Stop)
		begin := time.Now()
		burst(t, l, maxStreams)
		assert.Zero(t, time.Since(begin))
	})
}

// burst begins calls over one connection, sends their messages when all have begun, and waits until all have ended.
func burst(t *testing.T, l *bufconn.Listener, calls int) {
	t.Helper()
	data, err := proto.Marshal(one("day", "x"))
	require.NoError(t, err)
	conn, err := l.DialContext(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ends, done := frames{}, make(chan bool)
	ended := 0
	ends.each = func(kind, flags byte, _ uint32, _ int) {
		if kind == resetFrame || kind == headersFrame && flags&endStream != 0 {
			ended++
		}
	}
	go func() {
		defer close(done)
		for b := make([]byte, 1<<10); ended < calls; {
			n, err := conn.Read(b)
			ends.follow(b[:n])
			if err != nil {
				return
			}
		}
	}()
	var headers, messages strings.Builder
	for i := range calls {
		id := uint32(2*i + 1)
		headers.WriteString(frame(headersFrame, 4, id, callHeaders(pb.RateLimitService_ShouldRateLimit_FullMethodName, "")))
		messages.WriteString(frame(dataFrame, endStream, id, messageHead(len(data))+string(data)))
	}
	_, err = io.WriteString(conn, greeting+settings+headers.String())
	require.NoError(t, err)
	synctest.Wait()
	_, err = io.WriteString(conn, messages.String())
	require.NoError(t, err)
	<-done
	assert.Equal(t, calls, ended)
}
