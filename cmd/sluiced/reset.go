package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// resetRequest is the body of POST /reset of the debug port.
type resetRequest struct {
	Domain      string            `json:"domain"`
	Descriptors []resetDescriptor `json:"descriptors"`
}

type resetDescriptor struct {
	Entries []resetEntry `json:"entries"`
}

type resetEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// runReset makes the keys of the descriptors fresh.
func (q *question) runReset(flags *pflag.FlagSet) error {
	for _, other := range []string{"address", "hits", "refund", "json", "tls-ca", "tls-cert", "tls-key"} {
		if flags.Changed(other) {
			return fmt.Errorf("--%s and --reset: want one of them", other)
		}
	}
	switch {
	case q.domain == "":
		return errors.New("no domain: want --domain NAME")
	case q.timeout <= 0:
		return fmt.Errorf("--timeout %v: want more than 0", q.timeout)
	}
	asked, err := q.request()
	if err != nil {
		return err
	}
	in := resetRequest{Domain: q.domain}
	for _, d := range asked.Descriptors {
		var out resetDescriptor
		for _, e := range d.Entries {
			out.Entries = append(out.Entries, resetEntry{e.Key, e.Value})
		}
		in.Descriptors = append(in.Descriptors, out)
	}
	body, err := json.Marshal(in)
	if err != nil {
		return cli.Fail(err)
	}
	if err := q.postReset(body); err != nil {
		return cli.Fail(fmt.Errorf("%s: %w", q.debug, err))
	}
	for _, d := range q.descriptors {
		fmt.Fprintf(q.stdout, "%s: reset\n", d)
	}
	return nil
}

func (q *question) postReset(body []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), q.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+q.debug+"/reset", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(said)))
	}
	return nil
}
