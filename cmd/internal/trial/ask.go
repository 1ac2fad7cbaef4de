package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/rules"
)

// Path is where the debug port of a service takes an Order, with POST.
const Path = "/trial"

// The bounds of Order.For, and of the bytes of an Order.
const (
	MinFor, MaxFor = time.Second, time.Hour
	MaxOrder       = 64 << 20
)

// answerTime is how long a service may take to copy its counts, and to answer.
const answerTime = 2 * time.Minute

// An Order asks a service for a trial.
type Order struct {
	For   Duration `json:"for"`
	Merge bool     `json:"merge"` // the files may name a domain more than once
	Files []File   `json:"files"`
}

// A Duration is a time in text, such as 1m30s.
type Duration time.Duration

// MarshalText is time.Duration.String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText is time.ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// A File is a file of rules.
type File struct {
	Name string `json:"name"`
	Data string `json:"data"`
}

// CheckFor returns an error for a time that no trial goes on for.
func CheckFor(d time.Duration) error {
	if d < MinFor || d > MaxFor {
		return fmt.Errorf("%v is no time for a trial; want %v to %v", d, MinFor, MaxFor)
	}
	return nil
}

// Ask has the service whose debug port is at a URL try rules, waits until it has, and returns its result.
func Ask(ctx context.Context, base string, files []rules.File, o Order) (r Result, err error) {
	u, err := url.Parse(base)
	if err != nil {
		return r, err
	}
	if u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return r, fmt.Errorf("%q is no address of a debug port; want one as http://127.0.0.1:6070", base)
	}
	for _, f := range files {
		o.Files = append(o.Files, File{f.Name, string(f.Data)})
	}
	body, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.For)+answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath(Path).String(), bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, MaxOrder))
	switch {
	case err != nil:
		return r, err
	case resp.StatusCode == http.StatusNotFound:
		return r, fmt.Errorf("%s knows no %s; want the debug port of a sluiced that has it, as http://127.0.0.1:6070", base, Path)
	case resp.StatusCode != http.StatusOK:
		return r, errors.New(strings.TrimSpace(string(answer)))
	}
	if err := json.Unmarshal(answer, &r); err != nil {
		return r, fmt.Errorf("the answer of %s is no result of a trial: %w", base, err)
	}
	return r, nil
}

// Text writes the result of a trial of the service at a URL, for people.
func (r *Result) Text(w io.Writer, base string) error {
	var b strings.Builder
	from := "from the counts of the service on"
	if r.Fresh {
		from = "from counts of 0 on: those of the service are in its store"
	}
	fmt.Fprintf(&b, "%s answered %s in %v, and denied %d. These rules would have denied %d, %s.\n\n", message.OneLine(base), message.Count(int64(r.Calls), "call"),
		time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), r.Denied, r.WouldDeny, from)
	if len(r.Anew) > 0 {
		fmt.Fprintf(&b, "  the counts of %s began at 0\n", message.OneLine(strings.Join(r.Anew, ", ")))
	}
	if r.Failed > 0 {
		fmt.Fprintf(&b, "  of %s these rules could make nothing\n", message.Count(int64(r.Failed), "call"))
	}
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\tkept out\tlet in\t\n")
	fmt.Fprintf(table, "calls\t%d\t%d\t\n", r.KeptOut, r.LetIn)
	for _, part := range []struct {
		of   string
		list []Side
		more int
	}{{"rule", r.Rules, r.MoreRules}, {"client", r.Clients, r.MoreClients}} {
		for _, s := range part.list {
			fmt.Fprintf(table, "%s %s\t%d\t%d\t\n", part.of, message.OneLine(s.Name), s.KeptOut, s.LetIn)
		}
		if part.more > 0 {
			fmt.Fprintf(table, "and %s\t\t\t\n", message.Count(part.more, "more "+part.of))
		}
	}
	_ = table.Flush()
	b.WriteString("\nkept out: passed, and would be denied; let in: denied, and would pass\n")
	_, err := io.WriteString(w, b.String())
	return err
}
