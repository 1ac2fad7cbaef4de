package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// counts are the settled and denied units of the proxy.
type counts struct {
	mu sync.Mutex
	of map[string]*count
}

type count struct {
	used, streams, cut int
	denied             map[string]int
}

func (c *counts) change(key string, f func(*count)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[key] == nil {
		c.of[key] = &count{denied: map[string]int{}}
	}
	f(c.of[key])
}

func (c *counts) settle(key string, s *stream) {
	c.change(key, func(c *count) {
		c.used += s.used()
		c.streams++
		if s.cut {
			c.cut++
		}
	})
}

func (c *counts) deny(key, by string) { c.change(key, func(c *count) { c.denied[by]++ }) }

func (c *counts) get(key string) (now count) {
	c.change(key, func(c *count) { now = *c })
	return now
}

// wait returns when all streams have ended: the handler of a client that has died hears of it a little later.
func (p *proxy) wait() {
	for i := 0; p.streams.Len() > 0 && i < 1000; i++ {
		p.streams.Sweep() // forgets keys without streams
		time.Sleep(time.Millisecond)
	}
}

func keyName(i int) string { return fmt.Sprintf("key-%d", i) }

// A load is clients that call one after the other, each with one of the keys.
type load struct{ clients, keys int }

func (l load) run(ctx context.Context, proxy string) {
	var all sync.WaitGroup
	for i := range l.clients {
		all.Go(func() {
			for ctx.Err() == nil {
				if !call(ctx, proxy, keyName(i%l.keys)) {
					select { // it would be told to wait for a second; this one is impatient
					case <-ctx.Done():
					case <-time.After(time.Duration(20+rand.IntN(80)) * time.Millisecond):
					}
				}
			}
		})
	}
	all.Wait()
}

// call reads an answer, or a third of the time dies after some of it. It reports whether there was one.
func call(ctx context.Context, proxy, key string) bool {
	ctx, die := context.WithCancel(ctx)
	defer die()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, proxy+"/v1/chat/completions",
		strings.NewReader(`{"stream": true, "max_tokens": 200, "messages": [{"role": "user", "content": "tell me a story about ten little words"}]}`))
	if err != nil {
		return false
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	left := 1 << 30
	if rand.IntN(3) == 0 {
		left = rand.IntN(100)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && left > 0; left-- {
	}
	return resp.StatusCode == http.StatusOK
}
