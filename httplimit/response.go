package httplimit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// A recorder is a ResponseWriter that notes the status of the response. It is for one
// request and, like every ResponseWriter, not for use after it.
type recorder struct {
	http.ResponseWriter
	status  int      // 0 as long as nothing but informational responses has been written
	running *running // the units of a connection that is hijacked, or nil
}

// writer returns the recorder with the interfaces of the ResponseWriter below among http.Flusher,
// http.Hijacker and http.Pusher: handlers find out by a type assertion
// whether a response can flush. (http.CloseNotifier, which is deprecated, is not passed on.)
func (rec *recorder) writer() http.ResponseWriter {
	f, h := flushRecorder{rec}, hijackRecorder{rec}
	p, pushes := rec.ResponseWriter.(http.Pusher)
	flushes, hijacks := has[http.Flusher](rec.ResponseWriter) || has[errorFlusher](rec.ResponseWriter), has[http.Hijacker](rec.ResponseWriter)
	switch {
	case flushes && hijacks && pushes:
		return struct {
			*recorder
			http.Flusher
			http.Hijacker
			http.Pusher
		}{rec, f, h, p}
	case flushes && hijacks:
		return struct {
			*recorder
			http.Flusher
			http.Hijacker
		}{rec, f, h}
	case flushes && pushes:
		return struct {
			*recorder
			http.Flusher
			http.Pusher
		}{rec, f, p}
	case hijacks && pushes:
		return struct {
			*recorder
			http.Hijacker
			http.Pusher
		}{rec, h, p}
	case flushes:
		return struct {
			*recorder
			http.Flusher
		}{rec, f}
	case hijacks:
		return struct {
			*recorder
			http.Hijacker
		}{rec, h}
	case pushes:
		return struct {
			*recorder
			http.Pusher
		}{rec, p}
	}
	return rec
}

// http.ResponseController looks for errorFlusher before http.Flusher.
type errorFlusher interface{ FlushError() error }

// has reports whether w, or a ResponseWriter that it wraps, is a T. That is where
// http.ResponseController looks.
func has[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap() // of nil nothing can be asserted
	}
}

// note sets the status of the response. The first one counts.
func (rec *recorder) note(status int) {
	if rec.status == 0 {
		rec.status = status
	}
}

// WriteHeader implements http.ResponseWriter. It notes the status last, since it
// panics if the status is none.
func (rec *recorder) WriteHeader(status int) {
	rec.ResponseWriter.WriteHeader(status)
	if status >= 200 || status == http.StatusSwitchingProtocols {
		rec.note(status)
	}
}

// Write implements http.ResponseWriter.
func (rec *recorder) Write(b []byte) (int, error) {
	rec.note(http.StatusOK)
	return rec.ResponseWriter.Write(b)
}

// WriteString implements io.StringWriter.
func (rec *recorder) WriteString(s string) (int, error) {
	rec.note(http.StatusOK)
	return io.WriteString(rec.ResponseWriter, s)
}

// ReadFrom implements io.ReaderFrom, by which net/http sends files without copying
// them. A source without a byte writes nothing, so that the status can still be set. Any
// other source is copied by Write: if it panics, the bytes that it has given by then were written.
func (rec *recorder) ReadFrom(src io.Reader) (n int64, err error) {
	if !sentUncopied(src) {
		return io.Copy(struct {
			io.Writer
			io.StringWriter
		}{rec, rec}, src)
	}
	n, err = io.Copy(rec.ResponseWriter, src)
	if n > 0 {
		rec.note(http.StatusOK)
	}
	return n, err
}

// sentUncopied reports whether net/http may have the system send src, the purpose of
// ReadFrom. These do not panic. They need not be files and connections themselves: io.Copy has
// a file without its WriteTo copied.
func sentUncopied(src io.Reader) bool {
	if limited, ok := src.(*io.LimitedReader); ok {
		src = limited.R
	}
	_, ok := src.(syscall.Conn)
	return ok
}

// http.ResponseController calls FlushError. It returns an error that matches
// http.ErrNotSupported if the response cannot be flushed.
func (rec *recorder) FlushError() error {
	err := http.NewResponseController(rec.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) {
		rec.note(http.StatusOK)
	}
	return err
}

// Unwrap is for http.ResponseController.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

type flushRecorder struct{ rec *recorder }

// Flush implements http.Flusher.
func (f flushRecorder) Flush() { _ = f.rec.FlushError() } // Flush has no way to say so

type hijackRecorder struct{ rec *recorder }

// Hijack implements http.Hijacker. Writes to the connection are not seen from then on;
// they are taken for a protocol that has been switched to.
func (h hijackRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.rec.ResponseWriter).Hijack()
	if err == nil {
		h.rec.note(http.StatusSwitchingProtocols)
		if h.rec.running != nil {
			conn = h.rec.running.hold().conn(conn)
		}
	}
	return conn, rw, err
}

// problem is a problem document: RFC 9457. The type for 429 and its member
// violated-policies are from draft-ietf-httpapi-ratelimit-headers-11, sections 5.1 and
// 10.2.1.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// WriteProblem answers a denied request with a problem document (RFC 9457), as
// the middleware does without Config.OnDenied. For status 429 its type is
// https://iana.org/assignments/http-problem-types#quota-exceeded and its member
// violated-policies has the names of the policies; for 400 its type is about:blank.
// A Status of 0 counts as 429. The text of the KeyError is not told. The answer must not be
// stored by a cache (RFC 6585, section 4). For HEAD there is no body.
func WriteProblem(w http.ResponseWriter, r *http.Request, d Decision) {
	d.Status = cmp.Or(d.Status, http.StatusTooManyRequests)
	p := problem{Type: "about:blank", Title: http.StatusText(d.Status), Status: d.Status}
	switch d.Status {
	case http.StatusTooManyRequests:
		p.Type, p.Title, p.Violated = quotaExceeded, "Quota Exceeded", d.Violated
	case StatusClientGone:
		p.Title = "Client Closed Request"
	case http.StatusBadRequest:
		p.Detail = "The request lacks something that it has to be counted by, or has it in a form that cannot be used."
	}
	body, _ := json.Marshal(p) // of strings and a number, which never fails
	h := w.Header()
	h.Del("Content-Length") // of an answer that somebody had in mind
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(d.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // to a client that may be gone
	}
}
