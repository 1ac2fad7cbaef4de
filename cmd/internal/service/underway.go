package service

import (
	"sync"
	"sync/atomic"
	"time"
)

// What gRPC keeps in memory of calls that are not answered yet. Clients may begin calls and not end their messages, over
// any number of connections.
const (
	callBytes  = 24 << 10 // of a call: its goroutines, and its headers
	frameBytes = 128      // of a frame with a part of its message, besides that
	callsRoom  = 12 << 20 // of all calls, before connections with more than their share are not read
)

// underWay counts the bytes of the calls of all connections, beyond the room that each always has. When there is no room,
// connections with more than their share are not read, until some of their calls have ended.
type underWay struct {
	least int64 // every connection may always have as much: a message of the largest size

	bytes, connections atomic.Int64 // above least, and those that have such

	mutex   sync.Mutex
	freed   sync.Cond
	waiting atomic.Int64
}

func newUnderWay(message int) *underWay {
	u := &underWay{least: int64(message) + 4*callBytes}
	u.freed.L = &u.mutex
	return u
}

// connCalls are the calls of one connection.
type connCalls struct {
	all *underWay

	bytes  atomic.Int64
	closed atomic.Bool

	mutex sync.Mutex
	calls map[uint32]int64 // bytes by stream
}

// begin counts a call.
func (c *connCalls) begin(stream uint32) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if _, known := c.calls[stream]; known || c.closed.Load() {
		return
	}
	if c.calls == nil {
		c.calls = map[uint32]int64{}
	}
	c.calls[stream] = 0
	c.change(stream, callBytes)
}

// grow counts a part of a call's message.
func (c *connCalls) grow(stream uint32, bytes int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if _, known := c.calls[stream]; known {
		c.change(stream, bufferOf(bytes)+frameBytes)
	}
}

// bufferOf is how large a buffer gRPC keeps a frame in: above 1 KiB it takes buffers of fixed sizes.
func bufferOf(bytes int) int64 {
	switch {
	case bytes <= 1<<10:
		return int64(bytes)
	case bytes <= 4<<10:
		return 4 << 10
	case bytes <= 16<<10:
		return 16 << 10
	}
	return int64(bytes) // gRPC closes the connection: it takes no frames above 16 KiB
}

// answered forgets the message of a stream, which has answered it. The stream goes on.
func (c *connCalls) answered(stream uint32) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if n := c.calls[stream]; n > callBytes {
		c.change(stream, callBytes-n)
	}
}

// end forgets a call.
func (c *connCalls) end(stream uint32) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if n, known := c.calls[stream]; known {
		c.change(stream, -n)
		delete(c.calls, stream)
	}
}

// close forgets all calls.
func (c *connCalls) close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.closed.Store(true)
	clear(c.calls)
	c.add(-c.bytes.Load())
}

// change is called with mutex held.
func (c *connCalls) change(stream uint32, bytes int64) {
	c.calls[stream] += bytes
	c.add(bytes)
}

// add is called with mutex held.
func (c *connCalls) add(bytes int64) {
	after := c.bytes.Add(bytes)
	above, aboveBefore := max(0, after-c.all.least), max(0, after-bytes-c.all.least)
	switch {
	case aboveBefore == 0 && above > 0:
		c.all.connections.Add(1)
	case aboveBefore > 0 && above == 0:
		c.all.connections.Add(-1)
	}
	c.all.bytes.Add(above - aboveBefore)
	if bytes < 0 || c.closed.Load() {
		c.all.wake()
	}
}

func (u *underWay) wake() {
	if u.waiting.Load() > 0 {
		u.mutex.Lock()
		defer u.mutex.Unlock()
		u.freed.Broadcast()
	}
}

// wait waits until the connection may be read. It calls stuck, on another goroutine, after a time in which the calls should have
// ended: the client does not read their ends.
func (c *connCalls) wait(stuck func()) {
	if !c.tooMuch() {
		return
	}
	defer time.AfterFunc(2*messageTime, stuck).Stop()
	u := c.all
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.waiting.Add(1)
	defer u.waiting.Add(-1)
	for c.tooMuch() {
		u.freed.Wait()
	}
}

// tooMuch takes no mutex: its caller may hold it.
func (c *connCalls) tooMuch() bool {
	all := c.all.bytes.Load()
	return !c.closed.Load() && all > callsRoom && c.bytes.Load() > max(c.all.least, callsRoom/max(1, c.all.connections.Load()))
}

// The types and the flag of frames that begin and end calls (RFC 9113, section 6).
const (
	dataFrame    = 0
	headersFrame = 1
	resetFrame   = 3
	endStream    = 1
)

// received follows the frames of a client.
func (c *connCalls) received(kind, _ byte, stream uint32, length int) {
	switch kind {
	case headersFrame:
		c.begin(stream)
	case dataFrame:
		c.grow(stream, length)
	case resetFrame:
		c.end(stream)
	}
}

// sent follows the frames to it.
func (c *connCalls) sent(kind, flags byte, stream uint32, _ int) {
	switch {
	case kind == resetFrame, kind == headersFrame && flags&endStream != 0:
		c.end(stream)
	case kind == dataFrame:
		c.answered(stream)
	}
}
