package httplimit

import "net/http"

// StatusClientGone is the status that Config.Settle is told of where there is no response:
// the handler has returned without a word after the context of the request had ended. It
// is what nginx logs then, and no status of HTTP.
const StatusClientGone = 499

// serveAndSettle calls the handler and settles what the request costs, also if the
// handler panics. It does not recover, so that the panic goes on as it is.
func (h *handler) serveAndSettle(w http.ResponseWriter, r *http.Request, j *judgement) {
	rec := &recorder{ResponseWriter: w}
	panicked := true
	defer func() {
		status := rec.status
		switch {
		case status != 0:
		case panicked:
			status = http.StatusInternalServerError
		case r.Context().Err() == nil:
			status = http.StatusOK
		}
		h.settle(j, r, status)
	}()
	h.next.ServeHTTP(rec.writer(), r)
	panicked = false
}

// settle asks what the request finally costs, and makes it so. A status of 0 is none.
func (m *Judge) settle(j *judgement, r *http.Request, status int) {
	if status == 0 {
		status = StatusClientGone
	}
	final := m.config.Settle(r, status)
	if final < 0 {
		return
	}
	j.settle(final)
	if m.remotes {
		j.settleRemotes(r.Context(), final)
	}
}

// settle makes what the Limiters have charged final.
func (j *judgement) settle(final int) {
	for i := range j.entries {
		if r := j.entries[i].receipt; r != nil {
			r.Settle(final)
		}
	}
}
