package httplimit

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/inflight"
)

// maxParked bounds the part of a response that is read before it may have to be returned. Bodies
// of denials are far shorter.
const maxParked = 8 << 10

// parkGrace is the time that reading may take beyond the pause. A connection is not worth more
// of waiting for a server that trickles.
const parkGrace = time.Second

// park begins to read the body of resp, so that its connection is free during the pause,
// and returns a channel that is closed once it has. The body then holds the bytes read,
// or that and the rest of a longer one; whoever reads it before waits for that.
func park(resp *http.Response) (done <-chan struct{}) {
	reading := make(chan struct{})
	if resp.Body == nil || resp.ContentLength > maxParked {
		close(reading)
		return reading
	}
	p := &parkedBody{body: resp.Body, done: reading}
	resp.Body = p
	go p.park()
	return reading
}

// A parkedBody is a body whose beginning is read ahead.
type parkedBody struct {
	body   io.ReadCloser
	close  sync.Once
	done   chan struct{} // closed when there is a reader
	reader io.Reader
}

func (p *parkedBody) park() {
	defer close(p.done)
	read, err := io.ReadAll(io.LimitReader(p.body, maxParked+1))
	p.reader = bytes.NewReader(read)
	if err == nil && len(read) <= maxParked {
		p.Close()
		return
	}
	p.reader = io.MultiReader(p.reader, p.body)
}

// Read implements io.Reader.
func (p *parkedBody) Read(b []byte) (int, error) {
	<-p.done
	return p.reader.Read(b)
}

// Close implements io.Closer. It ends the reading ahead, too.
func (p *parkedBody) Close() (err error) {
	p.close.Do(func() { err = p.body.Close() })
	return err
}

func closeResponse(resp *http.Response) {
	if resp.Body != nil {
		resp.Body.Close()
	}
}

// A heldBody is the body of a response whose request holds units in flight, until the body is closed or has been read to
// its end, or the context has ended, with which a base transport ends the response.
type heldBody struct {
	io.ReadCloser
	mu     sync.Mutex
	held   *inflight.Lease // nil once given back or taken out
	ended  bool
	forget func() bool // the context
}

// holdUntilRead has resp hold units.
func holdUntilRead(ctx context.Context, resp *http.Response, held *inflight.Lease) *heldBody {
	b := &heldBody{ReadCloser: resp.Body, held: held}
	if rw, ok := resp.Body.(io.ReadWriteCloser); ok { // an upgraded connection: it is the caller's, whatever ends
		resp.Body = upgraded{b, rw}
		return b
	}
	resp.Body = b
	b.mu.Lock() // in case the context has ended
	defer b.mu.Unlock()
	b.forget = context.AfterFunc(ctx, b.end)
	return b
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

// Close implements io.Closer.
func (b *heldBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// end gives the units back.
func (b *heldBody) end() {
	b.mu.Lock()
	b.ended = true
	forget := b.forget
	b.mu.Unlock()
	if forget != nil {
		forget()
	}
	if held := b.takeOut(); held != nil {
		held.End()
	}
}

// takeOut returns the units that the body holds, for the caller to give back, or nil.
func (b *heldBody) takeOut() *inflight.Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held
	b.held = nil
	return held
}

// putBack has the body hold again the units that were taken out, or gives it back if the body has ended.
func (b *heldBody) putBack(held *inflight.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		held.End()
		return
	}
	b.held = held
}

// An upgraded body is a connection that has switched protocols. It ends when it is closed: the server may stop
// speaking before it stops listening.
type upgraded struct {
	*heldBody
	rw io.ReadWriteCloser
}

// Read implements io.Reader.
func (u upgraded) Read(p []byte) (int, error) { return u.rw.Read(p) }

// Write implements io.Writer.
func (u upgraded) Write(p []byte) (int, error) { return u.rw.Write(p) }

// CloseWrite ends the stream to the server, as far as the connection can do that.
func (u upgraded) CloseWrite() error {
	if half, ok := u.rw.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("CloseWrite: %w", http.ErrNotSupported)
}
