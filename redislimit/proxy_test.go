package redislimit

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proxy stands between a client and a server, and delays what the server answers, or lets
// nothing through.
type proxy struct {
	listener net.Listener
	server   string
	delay    atomic.Int64           // ns, of an answer
	hole     atomic.Bool            // bytes are read, and go nowhere:
	lost     atomic.Int64           // so many
	loses    atomic.Bool            // the answers to scripts: the connection ends instead
	ended    atomic.Int64           // so many times
	behind   atomic.Pointer[string] // the next answer, in one piece with it; "" is that answer again
	loading  atomic.Bool            // scripts are answered as by a server that loads its data
	passes   atomic.Pointer[func()] // called right before a piece is passed on, and right after
	end      chan struct{}          // of the test
	mu       sync.Mutex
	conns    map[net.Conn]bool
	refuses  bool
}

func newProxy(tb testing.TB, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	p := &proxy{listener: l, server: server, conns: map[net.Conn]bool{}, end: make(chan struct{})}
	tb.Cleanup(func() {
		close(p.end)
		p.cut(true)
	})
	go p.accept()
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.server)
		if err != nil || !p.keep(in, out) {
			in.Close()
			continue
		}
		asked := new(atomic.Bool) // for a script
		go p.pipe(out, in, asked, false)
		go p.pipe(in, out, asked, true)
	}
}

func (p *proxy) keep(in, out net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuses {
		return false
	}
	p.conns[in], p.conns[out] = true, true
	return true
}

func (p *proxy) pipe(to, from net.Conn, asked *atomic.Bool, answer bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if d := p.delay.Load(); answer && d > 0 {
			select {
			case <-time.After(time.Duration(d)):
			case <-p.end:
			}
		}
		if scripts := bytes.Count(b[:n], []byte("evalsha")); !answer && scripts > 0 {
			asked.Store(true)
			if p.loading.Load() {
				_, _ = from.Write(bytes.Repeat([]byte("-LOADING Redis is loading the dataset in memory\r\n"), scripts))
				continue
			}
		}
		if answer && p.loses.Load() && asked.Load() {
			p.ended.Add(1)
			return
		}
		if p.hole.Load() {
			p.lost.Add(int64(n))
		} else if n > 0 {
			p.passing()
			_, _ = to.Write(p.glue(b[:n], answer))
			p.passing()
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) passing() {
	if f := p.passes.Load(); f != nil {
		(*f)()
	}
}

// glue returns what is written in the place of b.
func (p *proxy) glue(b []byte, answer bool) []byte {
	if !answer {
		return b
	}
	behind := p.behind.Swap(nil)
	if behind == nil {
		return b
	}
	if *behind == "" {
		return bytes.Repeat(b, 2)
	}
	return slices.Concat(b, []byte(*behind))
}

// say writes to both sides of all connections.
func (p *proxy) say(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_, _ = c.Write([]byte(what))
	}
}

// mend lets bytes through again, at once and not late, and ends all connections: in one step, so that none is ended that has carried a call
// since.
func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked()
	p.hole.Store(false)
	p.delay.Store(0)
}

func (p *proxy) endLocked() {
	for c := range p.conns {
		c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

// cut ends all connections, though their other sides may not know at once. With refuse it accepts no more.
func (p *proxy) cut(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuse
	p.endLocked()
	if refuse {
		p.listener.Close()
	}
}
