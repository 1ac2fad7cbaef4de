package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// backend is a language model with nothing to say. It streams a token every few milliseconds, up to max_tokens, and the
// usage at the end, as the streaming endpoint of OpenAI does with include_usage.
func backend(pace time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var c completion
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		prompt := 0
		for _, m := range c.Messages {
			prompt += len(strings.Fields(m.Content))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		n := 1 + rand.IntN(max(c.MaxTokens, 1))
		for range n {
			select {
			case <-r.Context().Done(): // nobody reads any more
				return
			case <-time.After(pace):
			}
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"word \"}}]}\n\n")
			if flush.Flush() != nil {
				return
			}
		}
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\ndata: [DONE]\n\n", prompt, n, prompt+n)
	})
}
