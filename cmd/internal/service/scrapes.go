package service

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	maxScrapes = 8                // at a time
	scrapeTime = 10 * time.Second // to read an answer
)

// scrapes bounds how many requests are answered at a time. One more ends the oldest, whose client may not read, and waits for its
// place: else clients that do not read could keep Prometheus out.
type scrapes struct {
	http.Handler
	places chan struct{} // an element for each that is taken

	mutex sync.Mutex
	now   []*http.ResponseController // without those that have been ended
}

func newScrapes(h http.Handler) *scrapes {
	return &scrapes{Handler: h, places: make(chan struct{}, maxScrapes)}
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	if !s.begin(c, r) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many scrapes are under way; want fewer at a time", http.StatusServiceUnavailable)
		return
	}
	defer s.end(c)
	s.Handler.ServeHTTP(w, r)
}

// begin reports whether the request has got a place.
func (s *scrapes) begin(c *http.ResponseController, r *http.Request) bool {
	if !s.place(r) {
		return false
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(scrapeTime))
	s.now = append(s.now, c)
	return true
}

func (s *scrapes) place(r *http.Request) bool {
	select {
	case s.places <- struct{}{}:
		return true
	default:
	}
	s.endOldest()
	late := time.NewTimer(scrapeTime)
	defer late.Stop()
	select {
	case s.places <- struct{}{}:
		return true
	case <-late.C:
	case <-r.Context().Done():
	}
	return false
}

// endOldest has the oldest write no more. It keeps its place until its handler returns.
func (s *scrapes) endOldest() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.now) > 0 {
		_ = s.now[0].SetWriteDeadline(time.Unix(1, 0))
		s.now = slices.Delete(s.now, 0, 1)
	}
}

// end is called before the server takes the connection back.
func (s *scrapes) end(c *http.ResponseController) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if i := slices.Index(s.now, c); i >= 0 {
		s.now = slices.Delete(s.now, i, i+1)
	}
	<-s.places
}
