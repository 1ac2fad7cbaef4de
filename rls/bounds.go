package rls

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Bounds on the memory that requests take before they are decided: how large they are, how many there are at a
// time, and the objects made of them.

const (
	smallMessage = 1 << 10 // bytes of a request that is decoded whatever other requests do
	smallBody    = 4 << 10 // bytes of a body that is read whatever other requests do

	decodingRoom = 2 << 20  // bytes of larger requests that are decoded and decided at a time
	waitingRoom  = 32 << 20 // bytes of those that wait for that
	bodyRoom     = 16 << 20 // bytes of larger bodies that have come in part
)

// errBusy refuses a request for which there is no room. It can be sent again.
var errBusy = status.Error(codes.Unavailable, "too many large requests are under way; want fewer at a time, or send this one again")

// MessageBytes is the largest size of a message on the wire that the bounds of Options let pass, for grpc.MaxRecvMsgSize. It is
// at most 1 GiB.
func (s *Service) MessageBytes() int { return s.options.bytes(64, 8) }

// bodyBytes is the same of a body in JSON, whose names of fields take more than tags. Spaces and escapes are not counted.
func (o *Options) bodyBytes() int { return o.bytes(160, 26) }

// bytes is the largest size of a request, by the bytes of a descriptor and an entry besides text. A length takes one more byte for
// each 128 bytes of text.
func (o *Options) bytes(descriptor, entry int64) int {
	const most = 1 << 30
	text, descriptors, entries := int64(min(o.MaxText, most)), int64(min(o.MaxDescriptors, most/32)), int64(min(o.MaxEntries, most/32))
	return int(min(1<<10+2*text+descriptor*descriptors+entry*descriptors*entries, most))
}

// room bounds the bytes that are in use at a time.
type room struct {
	mutex         sync.Mutex
	free, waiting int
	queue         []*waiter // in the order in which they have come
}

// waiter waits for bytes.
type waiter struct {
	bytes int
	got   chan struct{} // closed when they are its own
}

func newRoom(bytes int) *room { return &room{free: bytes} }

// try takes n bytes if they are free.
func (r *room) try(n int) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if n > r.free {
		return false
	}
	r.free -= n
	return true
}

// take takes n bytes, and waits for them behind those that wait already, unless more than most bytes would wait.
func (r *room) take(n, most int) error {
	w, err := r.enqueue(n, most)
	if w != nil {
		<-w.got
	}
	return err
}

// enqueue takes n bytes and returns nil if they are free and nobody waits.
func (r *room) enqueue(n, most int) (*waiter, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	switch {
	case len(r.queue) == 0 && n <= r.free:
		r.free -= n
		return nil, nil
	case r.waiting+n > most:
		return nil, errBusy
	}
	w := &waiter{n, make(chan struct{})}
	r.waiting += n
	r.queue = append(r.queue, w)
	return w, nil
}

func (r *room) give(n int) {
	if n == 0 {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.free += n
	for len(r.queue) > 0 && r.queue[0].bytes <= r.free {
		w := r.queue[0]
		r.free -= w.bytes
		r.waiting -= w.bytes
		r.queue[0] = nil
		r.queue = r.queue[1:]
		close(w.got)
	}
}

// enter begins the decoding of a request of size bytes, and returns the argument of leave. Who has entered waits
// for the store at most, never for a client.
func (s *Service) enter(size int) (entered int, err error) {
	if size <= smallMessage {
		return 0, nil
	}
	n := min(size, decodingRoom)
	if err := s.decoding.take(n, waitingRoom); err != nil {
		s.refused.Add(1)
		return 0, err
	}
	return n, nil
}

func (s *Service) leave(entered int) { s.decoding.give(entered) }

// unpack decodes a message of this protocol, of holds included, once it is known that it is within the bounds: decoded it is
// up to fifty times as large.
func (s *Service) unpack(text string, into proto.Message) error {
	w := s.scratch.Get().(*scratch)
	err := s.readWire(w, text)
	if err == nil {
		w.forget()
		s.scratch.Put(w)
	}
	switch {
	case errors.Is(err, errWire), errors.Is(err, errUTF8): // which package proto refuses, too, and not before it has decoded what is before it
		return status.Error(codes.Internal, err.Error())
	case err != nil:
		s.refused.Add(1)
		return err
	}
	data := []byte(text)
	if err = proto.Unmarshal(data, into); err != nil {
		err = proto.Unmarshal(withValidTexts(data), into)
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// body reads the body of a request. Its client has Options.MessageTime for it. What is returned is given back to s.bodies.
func (s *Service) body(w http.ResponseWriter, r *http.Request) (body []byte, taken int, err error) {
	if s.options.MessageTime > 0 {
		deadlines := http.NewResponseController(w)
		_ = deadlines.SetReadDeadline(time.Now().Add(s.options.MessageTime)) // a test's has none
		defer func() {
			if err == nil { // else the server would wait for what it has not read, and throws away
				_ = deadlines.SetReadDeadline(time.Time{})
			}
		}()
	}
	most := s.options.bodyBytes()
	from := http.MaxBytesReader(w, r.Body, int64(most))
	for body = make([]byte, 0, 512); ; {
		n, failed := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case failed == io.EOF:
			return body, taken, nil
		case failed != nil:
			return nil, taken, failed
		case len(body) < cap(body):
			continue
		}
		size := min(2*cap(body), most+1)
		if size > smallBody {
			if !s.bodies.try(size - taken) {
				return nil, taken, errBusy
			}
			taken = size
		}
		body = append(make([]byte, 0, size), body...)
	}
}

// bodyCode is the status of a request whose body could not be read, or decoded.
func bodyCode(err error) int {
	switch {
	case errors.Is(err, errBusy):
		return http.StatusServiceUnavailable
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// refuseBusy answers a request that can be sent again.
func refuseBusy(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, status.Convert(err).Message(), http.StatusServiceUnavailable)
}

// jsonFits counts the descriptors of a body, and the entries of each, before it is decoded: an empty one of 3 bytes becomes
// a message of a hundred. Those are the elements of lists within lists: {"descriptors":[{"entries":[ ... ]}]}. What is no
// such JSON passes, for the decoder to refuse.
func (o *Options) jsonFits(body []byte) error {
	const descriptors, entries = "{[", "{[{["
	var open [len(entries)]byte // the first brackets
	depth, counts := 0, [2]int{}
	for i := 0; i < len(body); i++ {
		switch c := body[i]; c {
		case '"':
			i += stringEnd(body[i+1:])
		case '{', '[':
			if depth < len(open) {
				open[depth] = c
			}
			if depth++; string(open[:min(depth, len(open))]) == entries && depth == len(entries) {
				counts[1] = 1
			}
		case '}', ']':
			depth = max(depth-1, 0)
		case ',':
			switch {
			case depth == len(descriptors) && string(open[:depth]) == descriptors:
				counts[0]++
			case depth == len(entries) && string(open[:depth]) == entries:
				if counts[1]++; counts[1] > o.MaxEntries {
					return tooLarge("a descriptor, %d, of more than %d entries", counts[0], o.MaxEntries)
				}
			}
		}
	}
	if n := counts[0] + 1; n > o.MaxDescriptors {
		return tooLarge("%d descriptors; want at most %d", n, o.MaxDescriptors)
	}
	return nil
}

// stringEnd is the number of bytes up to the end of a string in JSON, with its quotation mark.
func stringEnd(s []byte) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(s)
}
