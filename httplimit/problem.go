package httplimit

import (
	"encoding/json"
	"net/http"
)

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

// WriteProblem answers a denied request with a problem document (RFC 9457), which is
// what happens without Config.OnDenied. For status 429 its type is
// https://iana.org/assignments/http-problem-types#quota-exceeded and its member
// violated-policies has the names of the policies; for 400 its type is about:blank.
// A Status of 0 counts as 429. What the KeyError says is not told. The answer must not be
// stored by a cache (RFC 6585, section 4). For HEAD there is no body.
func WriteProblem(w http.ResponseWriter, r *http.Request, d Decision) {
	if d.Status == 0 {
		d.Status = http.StatusTooManyRequests
	}
	p := problem{Type: "about:blank", Title: http.StatusText(d.Status), Status: d.Status}
	switch d.Status {
	case http.StatusTooManyRequests:
		p.Type, p.Title, p.Violated = quotaExceeded, "Quota Exceeded", d.Violated
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
