package service

import (
	"net/http"
	"sync"
	"time"
)

const (
	maxScrapes = 8                // at a time
	scrapeTime = 10 * time.Second // to read an answer
)

// scrapes bounds how many requests are answered at a time. One more ends the oldest, whose client does not read: else clients that
// do not could keep Prometheus out.
type scrapes struct {
	http.Handler
	mutex sync.Mutex
	now   []*http.ResponseController
}

func newScrapes(h http.Handler) *scrapes { return &scrapes{Handler: h} }

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	s.begin(c)
	defer s.end(c)
	s.Handler.ServeHTTP(w, r)
}

func (s *scrapes) begin(c *http.ResponseController) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(scrapeTime))
	if len(s.now) == maxScrapes {
		_ = s.now[0].SetWriteDeadline(time.Unix(1, 0))
		s.now = append(s.now[:0:0], s.now[1:]...)
	}
	s.now = append(s.now, c)
}

// end is called before the server takes the connection back.
func (s *scrapes) end(c *http.ResponseController) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for i, other := range s.now {
		if other == c {
			s.now = append(s.now[:i], s.now[i+1:]...)
			return
		}
	}
}
