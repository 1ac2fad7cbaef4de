package peers

import (
	"net/http"

	"github.com/go-chi/httprate"
)

func httprateSubject() Subject {
	return Subject{
		Name: "go-chi/httprate", Module: "github.com/go-chi/httprate", Kind: Library, Sweeps: true,
		Note: "OnLimit without a server and with its headers switched off, though it still formats them. Keys are 64-bit hashes. A sliding window; its burst is its rate.",
		New: func(o Options) (Limiter, error) {
			return &httprateLimiter{
				lim: httprate.NewRateLimiter(o.Rate, o.Period, httprate.WithResponseHeaders(httprate.ResponseHeaders{})),
				req: &http.Request{},
			}, nil
		},
	}
}

type httprateLimiter struct {
	uncounted
	lim *httprate.RateLimiter
	req *http.Request // only its context is looked at
}

// Allow passes no ResponseWriter: with all headers off, OnLimit would write only
// the error of a counter, and the local one has none.
func (l *httprateLimiter) Allow(key string) bool { return !l.lim.OnLimit(nil, l.req, key) }
