package redislimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrForeignValue is in the errors of calls for a key if Redis holds a value under the key's name that
// this package has not written. The value is left as it is. Three foreign values are not recognized: an empty
// string; a string with the first byte and length of a state, and a time in its place; and a list that begins and
// ends with numbers in order.
var ErrForeignValue = errors.New("redislimit: the key holds a value that redislimit has not written; delete it, or use another Prefix")

const (
	opAdmit = iota
	opRefund
	opReset
	opDebit
	opHold       // with a receipt
	opAll        // several calls, together; scripts do not know it, see all.go
	opLeases = 8 // added to op: the call has a leasing
)

// A request is a call of a script.
type request struct {
	plan *plan
	key  string // in Redis
	op   byte
	k, n int64 // calls, and units of each call
	debt int64 // units that were admitted without Redis
	leasing
	terms *terms   // of leases that it may ask for, or nil
	all   *allCall // of opAll
	receipt
}

// leasing is the part of a call that concerns leases. The zero value asks for nothing. See head.lua.
type leasing struct {
	lend, share, epoch   int64
	since, spent, unused int64
}

// A reply is the answer of a script.
type reply struct {
	view
	admitted int64
	held     int64     // units of the hold that the call is about
	lapsed   int64     // us: when the last hold of the key lapses
	said     byte      // saidAgain or saidCapped
	state    string    // the state that is stored now
	all      *allReply // of opAll
}

const (
	replyHead = 7 + 4 + 3*7
	maxState  = 46 + tailSize
	stamp     = 6 + 7 // a state's generation and time, after the first byte
	blockTag  = 66
	blockSize = 1 + stamp
	maxPlain  = 128
)

// name returns the name of key in Redis. Two different keys, of one prefix or of two, never have the
// same name: a prefix has no ~ in it, so the first ~ ends the prefix.
//
// The first { of a name, if a } follows, chooses the slot of a cluster. The text of a key must not choose it: a client
// that picks its keys could put all of them on one primary. A prefix may; if it has a {, a } follows in the prefix.
func name(prefix string, letter byte, key string) string {
	if len(key) <= maxPlain && (strings.IndexByte(key, '{') < 0 || strings.IndexByte(prefix, '{') >= 0) {
		return prefix + "~" + string(letter) + ":" + key
	}
	return prefix + "~" + string(letter) + "#" + digest(key)
}

func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// arguments returns the arguments of the script of r. now is in us, or 0 to use the clock of Redis.
func (r *request) arguments(now, spare int64, seen string) []byte {
	b := make([]byte, 0, 160)
	op := r.op
	if r.leasing != (leasing{}) {
		op += opLeases
	}
	b = appendUint32(append(b, op), r.k)
	b = appendUint56(appendUint56(b, r.n), now)
	b = appendUint56(appendUint56(appendUint32(b, spare), r.plan.block), r.debt)
	b = r.plan.shape.arguments(b, now)
	if op != r.op {
		b = appendUint32(appendUint32(appendUint56(b, r.lend), r.share), r.epoch)
		b = appendUint56(appendUint56(appendUint56(b, r.since), r.spent), r.unused)
	}
	if r.plan.holds {
		b = r.receipt.arguments(b)
	}
	return append(b, seen...)
}

// A command must not be sent twice by the client: the first one may have been charged.
type command struct{ *redis.Cmd }

// NoRetry tells the client not to send the command again.
func (command) NoRetry() bool { return true }

// SetErr is called by the client. A script that the server has refused has not run.
func (c command) SetErr(err error) {
	var refused redis.Error
	if errors.As(err, &refused) {
		c.argument().written = false
	}
	c.Cmd.SetErr(err)
}

// argument returns the argument of the script.
func (c command) argument() *argument {
	args := c.Args()
	if a, ok := args[len(args)-1].(*argument); ok {
		return a
	}
	return &argument{}
}

// An argument of a script knows whether it has been written to a connection since the server last
// refused it. The error of its command does not tell: if a cluster's client has redirected a pipeline, and the
// connection ends before the next answer, the error is the redirection.
type argument struct {
	packed  []byte
	written bool
}

// MarshalBinary is called when the argument is written.
func (a *argument) MarshalBinary() ([]byte, error) {
	a.written = true
	return a.packed, nil
}

// String is for hooks that print commands.
func (a *argument) String() string { return string(a.packed) }

// evalsha and eval return the command of a request: by hash, and with the text, for a server without the script.
func evalsha(ctx context.Context, r *request, packed []byte) command {
	if r.all != nil {
		return r.all.command(ctx, "evalsha", r.all.script().sha)
	}
	return r.command(ctx, "evalsha", r.plan.script().sha, packed)
}

func eval(ctx context.Context, r *request, packed []byte) command {
	if r.all != nil {
		return r.all.command(ctx, "eval", r.all.script().text)
	}
	return r.command(ctx, "eval", r.plan.script().text, packed)
}

func (r *request) command(ctx context.Context, by string, script any, packed []byte) command {
	if r.plan.holds {
		holds, times := holdNames(r.key)
		return command{redis.NewCmd(ctx, by, script, 3, r.key, holds, times, &argument{packed: packed})}
	}
	return command{redis.NewCmd(ctx, by, script, 1, r.key, &argument{packed: packed})}
}

func unknownScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }

// parse returns the reply to a command.
func parse(cmd command, holds bool) (r reply, err error) {
	if err := failed(cmd); err != nil {
		return r, err
	}
	return unpackReply(cmd.Val(), holds)
}

// failed returns the error of a command.
func failed(cmd command) error {
	err := cmd.Err()
	if err == nil {
		return nil
	}
	if text := err.Error(); strings.HasPrefix(text, "SLUICEFOREIGN") || strings.Contains(text, "WRONGTYPE") {
		return ErrForeignValue
	} else if err := refusedHold(text); err != nil {
		return err
	}
	err = fmt.Errorf("redislimit: %w", err)
	if !cmd.argument().written {
		err = &notDoneError{err}
	}
	return err
}

// unpackReply unpacks the answer of a script, of a limit with holds or without.
func unpackReply(answer any, holds bool) (r reply, err error) {
	s, ok := answer.(string)
	if ok && holds && len(s) >= replyHead+2*7+1 {
		r.held, r.lapsed, r.said = number(s[replyHead:replyHead+7]), number(s[replyHead+7:replyHead+14]), s[replyHead+14]
		s = s[:replyHead] + s[replyHead+15:]
	}
	if !ok || len(s) < replyHead || len(s) > replyHead+maxState {
		return r, fmt.Errorf("redislimit: the script answered %.64q of type %T, which it cannot: is there a proxy in between that changes replies?", fmt.Sprint(answer), answer)
	}
	r.now, r.admitted = number(s[:7]), number(s[7:11])
	r.a, r.b, r.c = number(s[11:18]), number(s[18:25]), number(s[25:32])
	r.state = s[replyHead:]
	if most := max(r.now, r.a, r.b, r.c, r.held, r.lapsed); most >= exact {
		return reply{}, fmt.Errorf("redislimit: the script answered with the number %d, and counts below 2^53: is there a proxy in between that changes replies?", most)
	}
	return r, nil
}

// keeps reports whether a script can have answered with state, if its states begin with first and have one
// of sizes. A log answers with no state, unless it is blocked.
func keeps(state string, first byte, sizes ...int) bool {
	switch {
	case state == "":
		return true
	case len(state) < blockSize || state[7] > 31: // a time is below 2^53
		return false
	case state[0] == blockTag:
		return len(state) == blockSize
	}
	return state[0] == first && slices.Contains(sizes, len(state))
}

// A notDoneError is the error of a call whose script has not run: the server has refused it, or has not received it.
type notDoneError struct{ error }

func (e *notDoneError) Unwrap() error { return e.error }

func notDone(err error) bool {
	var e *notDoneError
	return errors.As(err, &e)
}

// number returns the big-endian number in s.
func number(s string) (n int64) {
	for i := range len(s) {
		n = n<<8 | int64(s[i])
	}
	return n
}

// endless is longer than any Duration, in us.
const endless = exact * 1000

// blocked returns for how many us the key is blocked, or 0. A block until a time that scripts cannot count up to
// never ends.
func (r *reply) blocked() int64 {
	if len(r.state) != blockSize || r.state[0] != blockTag {
		return 0
	}
	until := number(r.state[7:])
	if until == exact-1 {
		return endless
	}
	return max(0, until-r.now)
}
