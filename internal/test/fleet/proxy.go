package fleet

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy stands between services and a server. It can be slow, swallow bytes, and cut connections.
type Proxy struct {
	listener net.Listener
	server   string
	end      chan struct{}

	delay atomic.Int64 // ns, before an answer is passed on
	hole  atomic.Bool  // nothing is passed on
	loses atomic.Bool  // a script is passed on, and its connection ends in the place of the answer

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// NewProxy listens on a free port of loopback. The caller closes it.
func NewProxy(server string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, server: server, end: make(chan struct{}), conns: map[net.Conn]bool{}}
	go p.accept()
	return p, nil
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Slow delays answers.
func (p *Proxy) Slow(d time.Duration) { p.delay.Store(int64(d)) }

// Hole swallows all bytes, or no more.
func (p *Proxy) Hole(on bool) {
	p.hole.Store(on)
	if !on {
		p.Cut() // what has been swallowed would leave others without their beginning
	}
}

// Lose cuts each connection between a script and its answer, or no more.
func (p *Proxy) Lose(on bool) { p.loses.Store(on) }

// Cut ends all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// Close ends the proxy.
func (p *Proxy) Close() {
	close(p.end)
	_ = p.listener.Close()
	p.Cut()
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()
		asked := new(atomic.Bool)
		go p.pipe(out, in, asked, false)
		go p.pipe(in, out, asked, true)
	}
}

func (p *Proxy) pipe(to, from net.Conn, asked *atomic.Bool, answer bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if n > 0 && !p.pass(to, b[:n], asked, answer) {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass passes bytes on, and reports whether the connection goes on.
func (p *Proxy) pass(to net.Conn, b []byte, asked *atomic.Bool, answer bool) bool {
	if d := p.delay.Load(); answer && d > 0 {
		select {
		case <-time.After(time.Duration(d)):
		case <-p.end:
		}
	}
	if !answer && bytes.Contains(b, []byte("evalsha")) {
		asked.Store(true)
	}
	if answer && p.loses.Load() && asked.Load() {
		return false
	}
	if p.hole.Load() {
		return true
	}
	_, err := to.Write(b)
	return err == nil
}
