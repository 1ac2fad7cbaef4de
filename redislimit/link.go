package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// A link makes calls of scripts with a client, and remembers the states of keys that the replies bring.
type link struct {
	client redis.UniversalClient
	memory memory
	clock  func() int64 // us, or 0 to use the clock of Redis
	spare  int64        // ms that keys live on after their state
}

// newLink returns a link that remembers up to so many keys; see Config.Remember. The error is a *ConfigError.
func newLink(client redis.UniversalClient, clock TimeSource, remember int) (*link, error) {
	if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, configErrorf("client", "it is nil; want a client, such as redis.NewClient(&redis.Options{Addr: \"localhost:6379\"})")
	}
	if c, ok := client.(*Client); ok && (c.base == nil || c.options.Dialer == nil) {
		return nil, configErrorf("client", "it is a Client that NewClient has not made; want one of NewClient")
	}
	l := &link{client: client, memory: memory{newTable[string](cmp.Or(remember, defaultRemember))}, spare: 1}
	l.clock = func() int64 { return 0 }
	if clock == CallerClock {
		l.clock = func() int64 { return max(1, time.Now().UnixMicro()) }
	}
	return l, nil
}

func (l *link) run(ctx context.Context, r request) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, err
	}
	return l.runAt(ctx, l.client, &r, l.clock())
}

// A processor is a client, or a connection of one.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

func (l *link) runAt(ctx context.Context, by processor, r *request, now int64) (reply, error) {
	arg := l.arguments(r, now)
	cmd := evalsha(ctx, r, arg)
	_ = by.Process(ctx, cmd) // cmd has the error, too
	if unknownScript(cmd.Err()) {
		cmd = eval(ctx, r, arg)
		_ = by.Process(ctx, cmd)
	}
	return l.read(r, cmd)
}

// A scheduled request is one of several in a pipeline.
type scheduled struct {
	request
	now   int64
	at    int // whose it is
	reply reply
	err   error
}

// runAll sends requests in one pipeline. If the server does not know a request's script, it sends that request again,
// with the script. Requests for one key run in their order.
func (l *link) runAll(ctx context.Context, batch []scheduled) {
	if len(batch) == 1 {
		b := &batch[0]
		b.reply, b.err = l.runAt(ctx, l.client, &b.request, b.now)
		return
	}
	pipe := l.client.Pipeline()
	cmds, args := make([]command, len(batch)), make([][]byte, len(batch))
	for i := range batch {
		b := &batch[i]
		args[i] = l.arguments(&b.request, b.now)
		cmds[i] = evalsha(ctx, &b.request, args[i])
		_ = pipe.Process(ctx, cmds[i])
	}
	execute(ctx, pipe, cmds)
	again := false
	for i := range batch {
		if unknownScript(cmds[i].Err()) {
			again = true
			cmds[i] = eval(ctx, &batch[i].request, args[i])
			_ = pipe.Process(ctx, cmds[i])
		}
	}
	if again {
		execute(ctx, pipe, cmds)
	}
	for i := range batch {
		batch[i].reply, batch[i].err = l.read(&batch[i].request, cmds[i])
	}
}

// execute sends a pipeline. Each command has its own error; but the client sets none when a new connection is
// refused.
func execute(ctx context.Context, pipe redis.Pipeliner, cmds []command) {
	_, err := pipe.Exec(ctx)
	for _, c := range cmds {
		if c.Err() == nil && c.Val() == nil {
			c.SetErr(err)
		}
	}
}

// read returns the reply to cmd, and remembers the state in the reply.
//
// A cluster's client looks for the slots again when it tries a command again. Our commands are not tried again, so
// read has the slots looked for after an error: otherwise the client would keep asking a node that has gone.
func (l *link) read(r *request, cmd command) (answer reply, err error) {
	if r.all != nil {
		answer, err = r.all.parse(cmd)
	} else {
		answer, err = parse(cmd, r.plan.holds)
		err = r.checked(&answer, err)
	}
	if err != nil {
		if c, ok := l.client.(interface{ ReloadState(context.Context) }); ok && !errors.Is(err, ErrForeignValue) && !ofHold(err) {
			c.ReloadState(context.Background()) // in the background, one at a time
		}
		return answer, err
	}
	if r.all != nil {
		for i := range answer.all.each {
			l.see(&r.all.calls[i].request, &answer.all.each[i])
		}
		return answer, nil
	}
	l.see(r, &answer)
	return answer, nil
}

// arguments returns the arguments of a script, with the state of the key that was seen last.
func (l *link) arguments(r *request, now int64) []byte {
	if r.all != nil {
		r.all.pack(l, now)
		return nil
	}
	return r.arguments(now, l.spare, l.memory.last(r.key))
}

// checked returns err or, for a reply that no script of the shape gives, an error. If the state of such a reply
// were kept, it would be sent with each call for the key, and refused.
func (r *request) checked(answer *reply, err error) error {
	if err == nil && !r.plan.keeps(answer.state) {
		err = fmt.Errorf("redislimit: the script answered with the state %.64q, which is another script's: is there a proxy in between that changes replies?", answer.state)
	}
	return err
}

// see remembers the state in a reply.
func (l *link) see(r *request, answer *reply) {
	fresh := answer.now + r.plan.shape.reset(answer.view)
	if blocked := answer.blocked(); blocked > 0 {
		fresh = answer.now + blocked
	}
	fresh += max(0, answer.lapsed-answer.now) // units on hold begin to come back then
	l.memory.see(r.key, answer.state, answer.now, fresh)
}
