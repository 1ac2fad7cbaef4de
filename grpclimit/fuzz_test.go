package grpclimit

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

const retryInfo = "type.googleapis.com/google.rpc.RetryInfo"

// FuzzReadRefusal: whatever bytes a server sends, it asks for a time that is not negative, for no more than its fields say, and only by
// codes that refuse.
func FuzzReadRefusal(f *testing.F) {
	f.Add(uint32(codes.ResourceExhausted), retryInfo, []byte("\n\x02\b\x05"), "1500", "", 1) // 5 s, 1.5 s
	f.Add(uint32(codes.Unavailable), retryInfo, []byte("\n\v\b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "-1", "", 1)
	f.Add(uint32(codes.OK), retryInfo, []byte{}, "99999999999999999999", "0", 2)
	f.Fuzz(func(t *testing.T, code uint32, kind string, detail []byte, first, second string, pushbacks int) {
		s := status.FromProto(&spb.Status{Code: int32(code), Details: []*anypb.Any{{TypeUrl: kind, Value: detail}}})
		trailer := metadata.MD{}
		if pushbacks > 0 {
			trailer.Append(pushbackKey, []string{first, second}[:min(pushbacks, 2)]...)
		}
		asked, again := readRefusal(s, trailer)
		require.GreaterOrEqual(t, asked, time.Duration(0))
		if c := s.Code(); c != codes.ResourceExhausted && c != codes.Unavailable {
			require.Zero(t, asked)
			require.False(t, again)
		}
		if pushbacks > 1 {
			require.False(t, again, "two pushbacks are none: gRFC A6")
		}
		if ms, err := strconv.Atoi(first); pushbacks == 1 && (err != nil || ms < 0) {
			require.False(t, again, "the server takes it no more: gRFC A6")
		}
		if kind != retryInfo {
			require.LessOrEqual(t, asked, time.Duration(1<<31)*time.Millisecond)
		}
	})
}

// FuzzJoin: two calls have one key only if all parts are the same, whatever bytes a client puts into them.
func FuzzJoin(f *testing.F) {
	f.Add("ann", "/pkg.Svc/Login", "ann", "/pkg.Svc/Login")
	f.Add("a", "1:b", "a1:", "b")
	f.Add("", "3:ann", "3:ann", "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		part := func(text string) KeyFunc {
			return func(context.Context, Call) (string, error) { return text, nil }
		}
		join := func(parts ...string) string {
			funcs := make([]KeyFunc, len(parts))
			for i := range parts {
				funcs[i] = part(parts[i])
			}
			join, err := Join(funcs...)
			require.NoError(t, err)
			key, err := join(t.Context(), Call{})
			require.NoError(t, err)
			require.LessOrEqual(t, len(key), MaxKeyLen)
			return key
		}
		require.Equal(t, a == c && b == d, join(a, b) == join(c, d))
		require.NotEqual(t, join(a+b), join(a, b))
	})
}
