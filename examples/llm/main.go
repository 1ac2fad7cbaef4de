// Command llm is a proxy before a language model that limits each API key to requests, tokens, and streams at once. It
// starts a model that streams words, and a load of clients, a third of which die in the middle of a stream. Then
// it prints the units that each key has used, beside its limit.
//
//	go run ./examples/llm
//	go run ./examples/llm -clients 50 -for 3s
//
// With -listen it only serves:
//
//	go run ./examples/llm -listen localhost:8080
//	curl -N localhost:8080/v1/chat/completions -H 'Authorization: Bearer ann' \
//	  -d '{"stream": true, "max_tokens": 40, "messages": [{"role": "user", "content": "say something"}]}'
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"text/tabwriter"
	"time"

	"github.com/sluice-go/sluice"
)

func main() {
	clients := flag.Int("clients", 200, "how many clients call")
	keys := flag.Int("keys", 4, "how many API keys they share")
	length := flag.Duration("for", 10*time.Second, "how long they call")
	listen := flag.String("listen", "", "serve here, without a load")
	flag.Parse()
	model, err := serve("localhost:0", backend(2*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	p := newProxy(model)
	if *listen != "" {
		log.Printf("listening on %s", *listen)
		log.Fatal((&http.Server{Addr: *listen, Handler: p, ReadHeaderTimeout: 5 * time.Second}).ListenAndServe())
	}
	address, err := serve("localhost:0", p)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *length)
	defer cancel()
	begin := time.Now()
	load{clients: *clients, keys: *keys}.run(ctx, address)
	p.wait()
	if p.report(os.Stdout, *keys, time.Since(begin)) > 0 {
		os.Exit(1)
	}
}

// newProxy limits each key to 10 requests a second, 100 tokens a second with 1,000 at once, and 5 streams at once.
func newProxy(model string) *proxy {
	return &proxy{
		requests: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10).WithBurst(20)})),
		tokens:   sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(100).WithBurst(1000)})),
		streams:  sluice.Must(sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(5, time.Minute)})),
		backend:  model,
		client:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}},
		count:    &counts{of: map[string]*count{}},
	}
}

// serve serves on an address of its own, and returns the URL.
func serve(address string, h http.Handler) (url string, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	go func() { log.Fatal((&http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}).Serve(listener)) }()
	return "http://" + listener.Addr().String(), nil
}

// report prints the units that each key has used, and returns how many keys have used more than their limit, or hold a stream.
func (p *proxy) report(w io.Writer, keys int, span time.Duration) (wrong int) {
	most := p.tokens.WorstCase(span)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "key\ttokens used\tlimit\tof the limit\tstreams\tcut\tdenied: requests\ttokens\tstreams\topen now\t")
	for i := range keys {
		key := keyName(i)
		c := p.count.get(key)
		open := 5 - p.streams.Key(key).Peek(0).Remaining
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f%%\t%d\t%d\t%d\t%d\t%d\t%d\t\n", key, c.used, most, 100*float64(c.used)/float64(most), c.streams, c.cut, c.denied["requests"], c.denied["tokens"], c.denied["streams"], open)
		if c.used > most || open > 0 {
			wrong++
		}
	}
	_ = t.Flush()
	return wrong
}
