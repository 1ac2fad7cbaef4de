package fiberlimit

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"
)

// newRequest returns the request as net/http would have made it, without a body. All of it
// is copied: fiber uses its memory again, and names of denied keys are kept.
func newRequest(c fiber.Ctx) (*http.Request, error) {
	h := &c.Request().Header
	target := string(h.RequestURI())
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, err
	}
	if readOtherwise(target, u) {
		return nil, fmt.Errorf("fiberlimit: the path of %.64q is not the one that fiber finds a handler by", target)
	}
	r := &http.Request{
		Method: string(h.Method()), URL: u, RequestURI: target, Proto: string(h.Protocol()),
		Header: http.Header{}, Body: http.NoBody, ContentLength: max(int64(h.ContentLength()), -1),
		Host: string(h.Host()), RemoteAddr: c.RequestCtx().RemoteAddr().String(), TLS: c.RequestCtx().TLSConnectionState(),
		Pattern: c.FullPath(),
	}
	if u.Host != "" { // which comes before the field
		r.Host = u.Host
	}
	var ok bool
	if r.ProtoMajor, r.ProtoMinor, ok = http.ParseHTTPVersion(r.Proto); !ok {
		return nil, fmt.Errorf("fiberlimit: %q is no version of HTTP", r.Proto)
	}
	for name, value := range h.All() {
		r.Header.Add(string(name), string(value))
	}
	r.Header.Del("Host")
	withoutTrailer(r.Header, c)
	return r.WithContext(context.WithValue(c.Context(), http.LocalAddrContextKey, c.RequestCtx().LocalAddr())), nil
}

// readOtherwise reports whether fiber finds handlers by another path than u's: it drops the text that
// comes behind a #, looks for a host behind two slashes where there is a :// anywhere, and has the
// scheme in the path where no host comes behind it.
func readOtherwise(target string, u *url.URL) bool {
	return strings.Contains(target, "#") || strings.HasPrefix(target, "//") && strings.Contains(target, "://") || u.Scheme != "" && u.Host == ""
}

const forwarded = "Forwarded"

// withoutTrailer leaves out a Forwarded that came behind the body. fasthttp puts the trailer of a
// body that it has read behind the fields of the header, which is where the last proxy
// writes. It refuses X-Forwarded-For and X-Real-IP there, but not this one.
func withoutTrailer(header http.Header, c fiber.Ctx) {
	lines := header[forwarded]
	if len(lines) == 0 {
		return
	}
	inHeader := 0
	for name := range c.Request().Header.AllInOrder() {
		if strings.EqualFold(string(name), forwarded) {
			inHeader++
		}
	}
	if header[forwarded] = lines[:min(inHeader, len(lines))]; inHeader == 0 {
		delete(header, forwarded)
	}
}

// A response is fiber's as a http.ResponseWriter.
type response struct {
	ctx     fiber.Ctx
	header  http.Header
	before  http.Header // fiber's
	written bool
}

func newResponse(c fiber.Ctx) *response {
	w := &response{ctx: c, header: http.Header{}}
	for name, value := range c.Response().Header.All() {
		w.header.Add(string(name), string(value))
	}
	w.before = w.header.Clone()
	return w
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// writeHeader copies the header of w to fiber's.
func (w *response) writeHeader() {
	h := &w.ctx.Response().Header
	for name := range w.before {
		if _, ok := w.header[name]; !ok {
			h.Del(name)
		}
	}
	for name, values := range w.header {
		if slices.Equal(values, w.before[name]) {
			continue
		}
		h.Del(name)
		for _, value := range values {
			h.Add(name, value)
		}
	}
}

// WriteHeader implements http.ResponseWriter. Informational responses are not sent.
func (w *response) WriteHeader(status int) {
	if w.written || status < 200 {
		return
	}
	w.written = true
	w.writeHeader()
	w.ctx.Status(status)
	w.ctx.Response().ResetBody() // of an answer that somebody had in mind
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.ctx.Write(b)
}
