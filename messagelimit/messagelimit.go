// Package messagelimit limits the messages of connections: of a WebSocket, or of anything else that carries messages. A message is charged to
// several keys at once, as one of its connection and one of its user, and either waits for its turn or is denied.
//
// [Reader] and [Writer] put a [Limit] around the functions that read and write messages, such as the Read and Write of a connection of
// github.com/coder/websocket. A message that waits keeps the ones behind it unread, and TCP slows the client down. Streams of gRPC have
// this in package grpclimit: PerReceived and PerSent.
//
// A Limit counts whole messages. Bound their size by the library of the connection, before they are in memory: SetReadLimit. Pings and pongs are no
// messages; a library that answers them in its Read answers as many as a client sends, unless its hook for pings asks a limiter, too: see
// examples/websocket.
package messagelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// Config says which keys the messages are charged to, and what becomes of a message for which there is no room.
type Config struct {
	// Keys are charged with each message, all or none: as one for the connection, and one for its user. At least one. Their limiters can
	// be different, but not InFlight: a message does not run.
	Keys []sluice.Key

	// MaxWait is the longest time that a message waits for its turn, of which it is told when it comes. With 0 it is denied instead.
	// Turns are in the order of the messages where the algorithms hand out turns: GCRA, TokenBucket, LeakyBucket.
	MaxWait time.Duration

	// Cost returns how many units a message is, of each key, as its length for limits of bytes; at least 0. nil means 1 for each. It must
	// not keep the message.
	Cost func(message []byte) int
}

// A Limit limits messages. It is safe for concurrent use, and must be made by New.
type Limit struct{ config Config }

// DeniedError is the error of a message that is denied: it was charged to no key.
type DeniedError struct {
	// RetryAfter is when the message would be admitted if nothing else happened to the keys, or sluice.Never.
	RetryAfter time.Duration
	// Err is sluice.ErrDenied; or, of a message that could wait, why it did not: sluice.ErrWouldExceedDeadline, for example.
	Err error
}

// Error names the reason and RetryAfter.
func (e *DeniedError) Error() string {
	if e.RetryAfter == sluice.Never {
		return fmt.Sprintf("messagelimit: %v, and no wait helps", e.Err)
	}
	return fmt.Sprintf("messagelimit: %v; retry after %v", e.Err, e.RetryAfter)
}

// Unwrap returns Err.
func (e *DeniedError) Unwrap() error { return e.Err }

// New returns the Limit of a connection. The error is a *sluice.ConfigError.
func New(c Config) (*Limit, error) {
	if len(c.Keys) == 0 {
		return nil, &sluice.ConfigError{Field: "Keys", Reason: "there is none; want the key of the connection, of its user, or both"}
	}
	if c.MaxWait < 0 {
		return nil, &sluice.ConfigError{Field: "MaxWait", Reason: fmt.Sprintf("%v is negative; want 0 to deny, or the longest wait", c.MaxWait)}
	}
	for i, k := range c.Keys {
		field := fmt.Sprintf("Keys[%d]", i)
		if k == (sluice.Key{}) {
			return nil, &sluice.ConfigError{Field: field, Reason: "it is the zero Key; want one of Limiter.Key"}
		}
		if a := k.Limiter().Config().Algorithm; a == sluice.InFlight {
			return nil, &sluice.ConfigError{Field: field, Reason: fmt.Sprintf("its Limiter is of %v, and messages do not run; want another Algorithm here, and httplimit for connections that are open at once", a)}
		}
	}
	c.Keys = slices.Clone(c.Keys)
	return &Limit{c}, nil
}

// Admit charges a message, and returns when it may pass. The error is a *DeniedError, or ctx's if ctx ends while the message waits; then the message
// was charged to no key.
func (l *Limit) Admit(ctx context.Context, message []byte) error {
	cost := 1
	if l.config.Cost != nil {
		cost = l.config.Cost(message)
	}
	var few [2]sluice.Charge
	charges := few[:0]
	for _, k := range l.config.Keys {
		charges = append(charges, sluice.Charge{Key: k, Cost: cost})
	}
	if l.config.MaxWait > 0 {
		return l.wait(ctx, charges)
	}
	if d := sluice.TakeAll(charges...); !d.Allowed {
		return &DeniedError{RetryAfter: d.RetryAfter, Err: sluice.ErrDenied}
	}
	return nil
}

func (l *Limit) wait(ctx context.Context, charges []sluice.Charge) error {
	patient, cancel := context.WithTimeout(ctx, l.config.MaxWait)
	defer cancel()
	_, err := sluice.WaitAll(patient, charges...)
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = sluice.ErrWouldExceedDeadline
	}
	return &DeniedError{RetryAfter: sluice.PeekAll(charges...).RetryAfter, Err: err}
}

// Reader returns read with a limit on the messages that it reads. A message that is denied is lost, and the error says so: end the connection, or read on. T
// is the library's type of a message, as text or binary.
func Reader[T any](l *Limit, read func(context.Context) (T, []byte, error)) func(context.Context) (T, []byte, error) {
	return func(ctx context.Context) (T, []byte, error) {
		kind, message, err := read(ctx)
		if err == nil {
			err = l.Admit(ctx, message)
		}
		if err != nil {
			return kind, nil, err
		}
		return kind, message, nil
	}
}

// Writer returns write with a limit on the messages that it writes. A message that is denied is not written.
func Writer[T any](l *Limit, write func(context.Context, T, []byte) error) func(context.Context, T, []byte) error {
	return func(ctx context.Context, kind T, message []byte) error {
		if err := l.Admit(ctx, message); err != nil {
			return err
		}
		return write(ctx, kind, message)
	}
}
