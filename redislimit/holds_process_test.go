package redislimit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A holderOrder is what a process that makes calls of holds is told, in a line of JSON.
type holderOrder struct {
	Number int          // of the call; the answer has it, too
	Open   *LimitConfig // makes a Store with that limit, in the place of the one before
	Prefix string       // of the keys of that Store
	Now    int64        // the time of the call, in us
	Dies   string       // "before" the call goes to Redis, or "after" Redis has answered it
	Call   StoreCall
}

// A holderReport is the answer to an order.
type holderReport struct {
	Number int
	Error  string
	Result StoreResult
}

// A holder is the process.
type holder struct {
	now    atomic.Int64
	dies   atomic.Pointer[string]
	client *redis.Client
	store  *Store
	limit  *StoreLimit
	out    sync.Mutex // guards os.Stdout
}

// beHolder obeys orders until there are no more. Calls are made at the same time.
func beHolder(addr, name string) error {
	h := &holder{client: redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ClientName: name})}
	h.client.AddHook(h)
	for orders := json.NewDecoder(os.Stdin); ; {
		o := new(holderOrder)
		if err := orders.Decode(o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		switch {
		case o.Open != nil:
			if err := h.open(o); err != nil {
				return err
			}
			h.report(o, StoreResult{})
		case o.Number > 0:
			h.now.Store(o.Now)
			if o.Dies != "" {
				h.dies.Store(&o.Dies)
			}
			go h.call(o)
		}
	}
}

func (h *holder) open(o *holderOrder) (err error) {
	if h.store != nil {
		if err = h.store.Close(context.Background()); err != nil {
			return err
		}
	}
	h.store, err = NewStore(h.client, StoreConfig{Prefix: o.Prefix, TimeSource: CallerClock, Replicas: 3, Budget: patient, OnUnavailable: FailClosed})
	if err != nil {
		return err
	}
	h.store.link.clock, h.store.link.spare = h.now.Load, 3_600_000
	h.limit, err = h.store.Limit(*o.Open)
	return err
}

func (h *holder) call(o *holderOrder) {
	o.Call.Limit = h.limit
	out := make([]StoreResult, 1)
	if err := h.store.Do(context.Background(), []StoreCall{o.Call}, out); err != nil {
		out[0].Err = err
	}
	h.report(o, out[0])
}

func (h *holder) report(o *holderOrder, result StoreResult) {
	r := holderReport{Number: o.Number, Result: result}
	if result.Err != nil {
		r.Error, r.Result.Err = result.Err.Error(), nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	h.out.Lock()
	defer h.out.Unlock()
	fmt.Println(string(text))
}

// die kills the process, as nothing that it could clean up after.
func (h *holder) die(when string) {
	if d := h.dies.Load(); d == nil || *d != when {
		return
	}
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

func (h *holder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !isScript(cmd) {
			return next(ctx, cmd)
		}
		h.die("before")
		err := next(ctx, cmd)
		if err == nil {
			h.die("after")
		}
		return err
	}
}

func (h *holder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if !isScript(cmd) {
				return next(ctx, cmds)
			}
		}
		h.die("before")
		err := next(ctx, cmds)
		if err == nil {
			h.die("after")
		}
		return err
	}
}

func isScript(cmd redis.Cmder) bool { return cmd.Name() == "evalsha" || cmd.Name() == "eval" }

// A holderProcess is a holder as its parent sees it.
type holderProcess struct {
	*testing.T
	name    string
	cmd     *exec.Cmd
	orders  io.WriteCloser
	reports chan holderReport // closed at its end
	number  int
}

var holderNames atomic.Int64

// startHolder starts a process that asks a server.
func startHolder(t *testing.T, addr string) *holderProcess {
	p := &holderProcess{T: t, name: fmt.Sprint("holder", holderNames.Add(1)), reports: make(chan holderReport, 16)}
	var out io.Reader
	p.cmd, p.orders, out = startReplica(t, addr, p.name, "holder")
	go func() {
		defer close(p.reports)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r holderReport
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				return // cut off by its death
			}
			p.reports <- r
		}
	}()
	return p
}

// tell gives an order, which a process that has died does not hear, and returns its number.
func (p *holderProcess) tell(o holderOrder) int {
	p.number++
	o.Number = p.number
	text, err := json.Marshal(o)
	require.NoError(p, err)
	_, _ = p.orders.Write(append(text, '\n'))
	return p.number
}

// next is the next report. ok is false if the process has died.
func (p *holderProcess) next() (r holderReport, ok bool) {
	select {
	case r, ok = <-p.reports:
	case <-time.After(time.Minute):
		require.Fail(p, "a process does not answer")
	}
	for _, err := range []error{ErrNotHeld, ErrManyHolds, ErrOtherHold} {
		if r.Error == err.Error() {
			r.Result.Err = err
		}
	}
	if r.Error != "" && r.Result.Err == nil {
		r.Result.Err = errors.New(r.Error)
	}
	return r, ok
}

// openLimit lets the process make a Store with a limit.
func (p *holderProcess) openLimit(prefix string, cfg *LimitConfig) {
	n := p.tell(holderOrder{Open: cfg, Prefix: prefix})
	r, ok := p.next()
	require.True(p, ok && r.Number == n && r.Error == "", "%+v", r)
}

// gone waits until the process has ended, and a server has done all that it has been sent by it.
func (p *holderProcess) gone(s *server) {
	_ = p.cmd.Wait()
	await(p.T, "the server has heard of its end", func() bool {
		list, err := s.client.Do(ctx, "client", "list").Text()
		require.NoError(p, err)
		return !slices.Contains(strings.Fields(list), "name="+p.name)
	})
}
