package messagelimit

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

func limiter(t *testing.T, c sluice.Config) *sluice.Limiter {
	t.Helper()
	l, err := sluice.New(c)
	require.NoError(t, err)
	return l
}

func limit(t *testing.T, c Config) *Limit {
	t.Helper()
	l, err := New(c)
	require.NoError(t, err)
	return l
}

// messages returns a function that reads messages without end.
func messages() func(context.Context) (int, []byte, error) {
	return func(context.Context) (int, []byte, error) { return 7, []byte("hello"), nil }
}

func TestReader_Denies(t *testing.T) {
	clock := sluice.NewManualClock(time.Unix(1, 0))
	perConnection := limiter(t, sluice.Config{Limit: sluice.PerSecond(2), Clock: clock})
	perUser := limiter(t, sluice.Config{Limit: sluice.PerSecond(3), Clock: clock})
	read := func(connection string) func(context.Context) (int, []byte, error) {
		return Reader(limit(t, Config{Keys: []sluice.Key{perConnection.Key(connection), perUser.Key("ann")}}), messages())
	}
	one, two := read("1"), read("2")
	for _, next := range []func(context.Context) (int, []byte, error){one, one, two} {
		kind, message, err := next(t.Context())
		require.NoError(t, err)
		require.Equal(t, 7, kind)
		require.Equal(t, "hello", string(message))
	}
	for _, next := range []func(context.Context) (int, []byte, error){one, two} { // two has room, and its user none
		_, message, err := next(t.Context())
		require.Nil(t, message)
		var denied *DeniedError
		require.ErrorAs(t, err, &denied)
		require.ErrorIs(t, err, sluice.ErrDenied)
		clock.Advance(denied.RetryAfter - 1)
		_, _, err = next(t.Context())
		require.Error(t, err, "just before RetryAfter")
		clock.Advance(1)
		_, _, err = next(t.Context())
		require.NoError(t, err, "after RetryAfter; a denied message was charged to no key")
	}
}

func TestWriter_Denies(t *testing.T) {
	l := limit(t, Config{Keys: []sluice.Key{limiter(t, sluice.Config{Limit: sluice.PerHour(1)}).Key("a")}})
	var written []string
	write := Writer(l, func(_ context.Context, kind int, message []byte) error {
		written = append(written, string(message))
		require.Equal(t, 7, kind)
		return io.ErrClosedPipe
	})
	require.ErrorIs(t, write(t.Context(), 7, []byte("first")), io.ErrClosedPipe)
	require.ErrorIs(t, write(t.Context(), 7, []byte("second")), sluice.ErrDenied)
	require.Equal(t, []string{"first"}, written)
}

// TestReader_PassesErrors: a read that fails is no message, and is not charged.
func TestReader_PassesErrors(t *testing.T) {
	key := limiter(t, sluice.Config{Limit: sluice.PerHour(1)}).Key("a")
	read := Reader(limit(t, Config{Keys: []sluice.Key{key}}), func(context.Context) (int, []byte, error) { return 8, nil, io.EOF })
	kind, _, err := read(t.Context())
	require.Equal(t, 8, kind)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 1, key.Peek(0).Remaining)
}

func TestReader_Waits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := limiter(t, sluice.Config{Limit: sluice.PerSecond(10).WithBurst(1)}).Key("a")
		read := Reader(limit(t, Config{Keys: []sluice.Key{key}, MaxWait: time.Second}), messages())
		begun := time.Now()
		for range 21 {
			_, _, err := read(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, 2*time.Second, time.Since(begun))
	})
}

// TestReader_WaitsNoLongerThanMaxWait: a message whose turn comes later is denied when it comes, and takes nobody's turn.
func TestReader_WaitsNoLongerThanMaxWait(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.SlidingWindow, sluice.FixedWindow, sluice.SlidingLog} {
		t.Run(algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key := limiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(1)}).Key("a")
				l := limit(t, Config{Keys: []sluice.Key{key}, MaxWait: time.Second})
				require.NoError(t, l.Admit(t.Context(), nil))
				begun := time.Now()
				err := l.Admit(t.Context(), nil)
				var denied *DeniedError
				require.ErrorAs(t, err, &denied)
				require.ErrorIs(t, err, sluice.ErrWouldExceedDeadline)
				require.LessOrEqual(t, time.Since(begun), time.Second)
				require.Positive(t, denied.RetryAfter)
				time.Sleep(denied.RetryAfter)
				require.NoError(t, l.Admit(t.Context(), nil))
			})
		})
	}
}

// TestAdmit_Cancelled: a message whose context ends while it waits has that error, and its charge is given back.
func TestAdmit_Cancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := limiter(t, sluice.Config{Limit: sluice.PerSecond(1)}).Key("a")
		l := limit(t, Config{Keys: []sluice.Key{key}, MaxWait: time.Minute})
		require.NoError(t, l.Admit(t.Context(), nil))
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error)
		go func() { result <- l.Admit(ctx, nil) }()
		synctest.Wait()
		cancel(gone)
		require.Equal(t, context.Canceled, <-result, "not a denial")
		begun := time.Now()
		require.NoError(t, l.Admit(t.Context(), nil))
		require.Equal(t, time.Second, time.Since(begun), "the turn of the message that has gone")
	})
}

// TestAdmit_Cost: bytes are limited by a Cost of the length. A message that is larger than the burst never passes, and never waits.
func TestAdmit_Cost(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			key := limiter(t, sluice.Config{Limit: sluice.PerSecond(10)}).Key("a")
			l := limit(t, Config{Keys: []sluice.Key{key}, MaxWait: wait, Cost: func(m []byte) int { return len(m) }})
			require.NoError(t, l.Admit(t.Context(), make([]byte, 8)))
			require.Equal(t, 2, key.Peek(0).Remaining)
			begun := time.Now()
			var denied *DeniedError
			require.ErrorAs(t, l.Admit(t.Context(), make([]byte, 11)), &denied)
			require.Equal(t, sluice.Never, denied.RetryAfter)
			require.Contains(t, denied.Error(), "no wait helps")
			require.Zero(t, time.Since(begun))
			require.Equal(t, 2, key.Peek(0).Remaining)
		})
	}
}

// TestAdmit_Together: readers and writers of a user's connections share the budget of the user, exactly.
func TestAdmit_Together(t *testing.T) {
	perConnection := limiter(t, sluice.Config{Limit: sluice.PerHour(40)})
	perUser := limiter(t, sluice.Config{Limit: sluice.PerHour(100)})
	var admitted [4]atomic.Int64
	var all sync.WaitGroup
	for i := range admitted {
		l := limit(t, Config{Keys: []sluice.Key{perConnection.Key(string(rune('a' + i))), perUser.Key("ann")}})
		for range 2 {
			all.Go(func() {
				for range 50 {
					if l.Admit(t.Context(), nil) == nil {
						admitted[i].Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	sum := int64(0)
	for i := range admitted {
		require.LessOrEqual(t, admitted[i].Load(), int64(40))
		sum += admitted[i].Load()
	}
	require.Equal(t, int64(100), sum)
}

func TestNew_Refuses(t *testing.T) {
	key := limiter(t, sluice.Config{Limit: sluice.PerSecond(1)}).Key("a")
	running := limiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(10, time.Minute)}).Key("a")
	for text, c := range map[string]Config{
		"sluice: Keys: there is none; want the key of the connection, of its user, or both":                                                                       {},
		"sluice: MaxWait: -1s is negative; want 0 to deny, or the longest wait":                                                                                   {Keys: []sluice.Key{key}, MaxWait: -time.Second},
		"sluice: Keys[1]: it is the zero Key; want one of Limiter.Key":                                                                                            {Keys: []sluice.Key{key, {}}},
		"sluice: Keys[0]: its Limiter is of in-flight, and messages do not run; want another Algorithm here, and httplimit for connections that are open at once": {Keys: []sluice.Key{running}},
	} {
		_, err := New(c)
		require.EqualError(t, err, text)
		var config *sluice.ConfigError
		require.ErrorAs(t, err, &config)
	}
}
