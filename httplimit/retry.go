package httplimit

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// retryable reports whether resp calls for a retry and req may be sent again.
func retryable(req *http.Request, resp *http.Response) bool {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return false
	}
	return idempotent(req) && (!hasBody(req) || req.GetBody != nil)
}

// idempotent reports whether sending req twice is meant to have the effect of sending
// it once. That a header is in the map is enough, as for net/http.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := req.Header["Idempotency-Key"]
	_, xkey := req.Header["X-Idempotency-Key"]
	return key || xkey
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// backoff returns a random pause before retry n, counted from 0: "full jitter", which
// spreads what would otherwise come back in step.
func (t *Transport) backoff(n int) time.Duration {
	ceiling := t.config.BackoffBase
	for range n {
		if ceiling > t.config.BackoffCap/2 {
			ceiling = t.config.BackoffCap
			break
		}
		ceiling *= 2
	}
	return t.jitter(ceiling)
}

// again waits until the request may be sent another time, after a pause of at least d,
// and returns a copy to send. It is nil if resp is to be returned instead, which is
// then complete, and cause is why nothing is to be returned: the context has ended.
func (p *passage) again(resp *http.Response, d time.Duration) (next *http.Request, cause error) {
	if p.mayWait(d) != nil {
		return nil, nil
	}
	parked := park(resp)
	err := p.pause(d)
	if err == nil {
		left, _ := p.patience()
		err = p.waitFor(parked, min(left, parkGrace))
	}
	if err == nil {
		err = p.admit()
	}
	if p.ctx.Err() != nil {
		return nil, context.Cause(p.ctx)
	}
	if err != nil {
		return nil, nil
	}
	next = p.req.Clone(p.ctx)
	if !hasBody(p.req) {
		return next, nil
	}
	if next.Body, err = p.req.GetBody(); err != nil {
		p.refund()
		return nil, nil
	}
	return next, nil
}

// maxParked bounds what is read of a response that may have to be returned later. Bodies
// of denials are far shorter.
const maxParked = 8 << 10

// parkGrace is what the reading may take beyond the pause. A connection is not worth more
// of waiting for a server that trickles.
const parkGrace = time.Second

// park begins to read the body of resp, so that its connection is free during the pause,
// and returns a channel that is closed once it has. The body is then what has been read,
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
