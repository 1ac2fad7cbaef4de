package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// A proxy limits the calls of a language model by API key: requests, tokens, and streams that are open at once. A
// call has all three or none.
type proxy struct {
	requests, tokens, streams *sluice.Limiter
	backend                   string // base URL
	client                    *http.Client
	count                     *counts
}

// step is how many tokens a stream asks for at a time, while it grows.
const step = 32

// completion is the part of a request that the proxy reads.
type completion struct {
	Messages []struct {
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens int  `json:"max_tokens"`
	Stream    bool `json:"stream"`
}

// ServeHTTP takes an estimate of the tokens before the call, and settles the truth behind it, however the call ends.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || key == "" {
		fail(w, http.StatusUnauthorized, "invalid_request_error", "want Authorization: Bearer KEY")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	var c completion
	if err != nil || json.Unmarshal(body, &c) != nil || !c.Stream {
		fail(w, http.StatusBadRequest, "invalid_request_error", "want JSON of at most 1 MiB with \"stream\": true")
		return
	}
	prompt := 0
	for _, m := range c.Messages {
		prompt += len(strings.Fields(m.Content))
	}
	charges := []sluice.Charge{{Key: p.requests.Key(key), Cost: 1}, {Key: p.tokens.Key(key), Cost: prompt + step}, {Key: p.streams.Key(key), Cost: 1}}
	var reservations [3]*sluice.Reservation
	var each [3]sluice.Decision
	if d := sluice.TakeAllReservations(reservations[:], each[:], charges...); !d.Allowed {
		p.deny(w, key, each)
		return
	}
	s := &stream{held: prompt + step, prompt: prompt, tokens: reservations[1]}
	defer keepPlace(reservations[2], p.streams.Key(key).Limit().Period/3)()
	defer func() {
		reservations[1].Settle(s.used())
		p.count.settle(key, s)
	}()
	if err := s.pass(w, r, p, key, body); err != nil && r.Context().Err() == nil {
		log.Printf("stream of %s: %v", key, err)
	}
}

// keepPlace renews the place of a stream, which would lapse after the limit's Period, until it is given back.
func keepPlace(place *sluice.Reservation, every time.Duration) (giveBack func()) {
	ended, ticker := make(chan struct{}), time.NewTicker(every)
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				if place.Renew() != nil {
					log.Print("a stream has lost its place: its key was reset or blocked")
				}
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(ended)
		place.Cancel()
	}
}

// deny tells a client when to come back. It is not known when another stream ends.
func (p *proxy) deny(w http.ResponseWriter, key string, each [3]sluice.Decision) {
	names, wait, by := [3]string{"requests", "tokens", "streams"}, time.Duration(0), ""
	for i, d := range each {
		if d.Allowed {
			continue
		}
		if by = names[i]; by == "streams" {
			d.RetryAfter = time.Second
		}
		wait = max(wait, d.RetryAfter)
	}
	p.count.deny(key, by)
	if wait != sluice.Never {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	fail(w, http.StatusTooManyRequests, "rate_limit_exceeded", "too many "+by)
}

func fail(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"type": kind, "message": message}})
}

// A stream is one answer on its way to a client.
type stream struct {
	tokens *sluice.Reservation
	held   int // tokens that are charged so far
	prompt int
	passed int  // tokens that the client has been sent
	usage  int  // the backend's own count, or 0 before the end
	cut    bool // where the budget was spent
}

// used is the cost of the stream: the backend's count, or the tokens passed if it ended early.
func (s *stream) used() int { return max(s.usage, s.prompt+s.passed) }

// room reports whether one more token may pass. The stream asks for a step more when it has used its units, and
// near the limit for less, so that it is cut exactly there.
func (s *stream) room() bool {
	if s.prompt+s.passed < s.held {
		return true
	}
	for n := step; n > 0; n /= 2 {
		if s.tokens.Extend(n) {
			s.held += n
			return true
		}
	}
	return false
}

// pass copies the events of the backend to the client until they end, the budget is spent, or the client has gone.
func (s *stream) pass(w http.ResponseWriter, r *http.Request, p *proxy, key string, body []byte) error {
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodPost, p.backend+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	ask.Header.Set("Content-Type", "application/json")
	ask.Header.Set("Authorization", "Bearer "+key)
	resp, err := p.client.Do(ask)
	if err != nil {
		fail(w, http.StatusBadGateway, "api_error", "the backend does not answer")
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		dump, _ := httputil.DumpResponse(resp, false)
		fail(w, http.StatusBadGateway, "api_error", "the backend refuses the call")
		return fmt.Errorf("%s", dump)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		e := parse(data)
		if e.content && !s.room() {
			s.cut = true
			_, err := fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil {
			return err
		}
		if e.content {
			s.passed++
		}
		s.usage = max(s.usage, e.usage)
		if err := flush.Flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

// An event is the part of a chunk that counts: whether it has a token, and the usage at the end of the stream.
type event struct {
	content bool
	usage   int
}

func parse(data string) (e event) {
	var chunk struct {
		Choices []struct {
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
		Usage *struct {
			Total int `json:"total_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal([]byte(data), &chunk) != nil { // [DONE]
		return e
	}
	e.content = len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != ""
	if chunk.Usage != nil {
		e.usage = chunk.Usage.Total
	}
	return e
}
