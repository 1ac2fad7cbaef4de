package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// question is the command line of ask.
type question struct {
	address, domain   string
	hits              uint32
	look              bool // hits are 0, and that was said
	refund, reset     bool
	debug             string
	json              bool
	timeout           time.Duration
	caFile            string
	certFile, keyFile string
	descriptors       []string
	stdout            io.Writer
}

func newAsk() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "ask -d DOMAIN KEY=VALUE,...",
		Short: "Ask a rate limit service whether a call may pass",
		Long: `Ask calls Envoy's rate limit service, as Envoy does, and prints what it says. An
argument is a descriptor: its entries, with commas between them. A comma, or a
backslash, within a value has a backslash before it.

With --reset it asks nothing: it makes the keys of the descriptors fresh,
through the debug port. That frees a client that a wrong number has locked.
Holds of the keys that are open have then ended.

It exits with 0 for OK, 1 for OVER_LIMIT and if there is no answer, and 2 if the
command line is wrong.`,
		Example: `  sluiced ask -d api client=ann
  sluiced ask -d api client=ann path=/login,client=ann --hits 3
  sluiced ask -d api client=ann --hits 3 --refund
  sluiced ask -d api client=ann --reset`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no descriptor: want KEY=VALUE, or several with commas between them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q.look = q.hits == 0 && cmd.Flags().Changed("hits")
			q.descriptors, q.stdout = args, cmd.OutOrStdout()
			if q.reset {
				return q.runReset(cmd.Flags())
			}
			if cmd.Flags().Changed("debug") {
				return errors.New("--debug without --reset: want --address, or both")
			}
			return q.run()
		},
	}
	f := cmd.Flags()
	f.StringVarP(&q.domain, "domain", "d", "", "domain of the rules")
	f.StringVar(&q.address, "address", "127.0.0.1:8081", "address of the service, or unix:PATH")
	f.Uint32Var(&q.hits, "hits", 1, "what the call counts for; 0 looks and counts nothing")
	f.BoolVar(&q.refund, "refund", false, "give the hits back that an earlier call has counted (is_negative_hits)")
	f.BoolVar(&q.reset, "reset", false, "make the keys fresh, through the debug port")
	f.StringVar(&q.debug, "debug", "127.0.0.1:6070", "address of the service's debug port, for --reset")
	f.BoolVar(&q.json, "json", false, "print the answer as JSON")
	f.DurationVar(&q.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	f.StringVar(&q.caFile, "tls-ca", "", "use TLS, and trust certificates signed by those in this file")
	f.StringVar(&q.certFile, "tls-cert", "", "certificate to show to the service, under --tls-ca")
	f.StringVar(&q.keyFile, "tls-key", "", "key of the certificate")
	return cmd
}

// run asks, and prints the answer.
func (q *question) run() error {
	if q.domain == "" {
		return errors.New("no domain: want --domain NAME")
	}
	if q.timeout <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0", q.timeout)
	}
	req, err := q.request()
	if err != nil {
		return err
	}
	creds, err := q.credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(q.address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("--address %q: %w", q.address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), q.timeout)
	defer cancel()
	resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, req)
	if err != nil {
		st := status.Convert(err)
		return cli.Fail(fmt.Errorf("%s: %s: %s", q.address, st.Code(), st.Message()))
	}
	if err := q.print(req, resp); err != nil {
		return cli.Fail(err)
	}
	if resp.OverallCode != pb.RateLimitResponse_OK {
		return cli.ErrDenied
	}
	return nil
}

func (q *question) credentials() (credentials.TransportCredentials, error) {
	switch {
	case (q.certFile == "") != (q.keyFile == ""):
		return nil, errors.New("one of --tls-cert and --tls-key is missing: want both or none")
	case q.caFile == "" && q.certFile != "":
		return nil, errors.New("--tls-cert without --tls-ca: want the certificates that are trusted, too")
	case q.caFile == "":
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(q.caFile)
	if err != nil {
		return nil, cli.Fail(fmt.Errorf("--tls-ca: %w", err))
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, cli.Fail(fmt.Errorf("--tls-ca %s: no certificate in it; want one in PEM form", q.caFile))
	}
	if q.certFile != "" {
		pair, err := tls.LoadX509KeyPair(q.certFile, q.keyFile)
		if err != nil {
			return nil, cli.Fail(fmt.Errorf("--tls-cert: %w", err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c), nil
}

func (q *question) request() (*pb.RateLimitRequest, error) {
	req := &pb.RateLimitRequest{Domain: q.domain, HitsAddend: q.hits}
	for _, arg := range q.descriptors {
		d := &common.RateLimitDescriptor{IsNegativeHits: q.refund}
		if q.look { // which only descriptors can say
			d.HitsAddend = wrapperspb.UInt64(0)
		}
		for _, pair := range splitEntries(arg) {
			key, value, ok := strings.Cut(pair, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf("descriptor %q: %q is no entry: want KEY=VALUE", arg, pair)
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req, nil
}

// splitEntries splits at commas that have no backslash before them. A backslash makes the character
// behind it an ordinary one.
func splitEntries(arg string) []string {
	var out []string
	var b strings.Builder
	for i := 0; i < len(arg); i++ {
		switch c := arg[i]; {
		case c == '\\' && i+1 < len(arg):
			i++
			b.WriteByte(arg[i])
		case c == ',':
			out = append(out, b.String())
			b.Reset()
		default:
			b.WriteByte(c)
		}
	}
	return append(out, b.String())
}

// print writes the answer: the code, and a line for each descriptor.
func (q *question) print(req *pb.RateLimitRequest, resp *pb.RateLimitResponse) error {
	if q.json {
		b, err := protojson.Marshal(resp)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(q.stdout, "%s\n", b)
		return err
	}
	if len(resp.Statuses) != len(req.Descriptors) {
		return fmt.Errorf("the service sent %d statuses for %d descriptors", len(resp.Statuses), len(req.Descriptors))
	}
	var b strings.Builder
	fmt.Fprintln(&b, resp.OverallCode)
	for i, st := range resp.Statuses {
		fmt.Fprintf(&b, "  %s: %s%s\n", q.descriptors[i], st.Code, q.describe(st))
	}
	_, err := io.WriteString(q.stdout, b.String())
	return err
}

// describe is the limit of a status, if there is one. A key that is denied while there is nothing to
// reset has been asked for more than it will ever have.
func (q *question) describe(st *pb.RateLimitResponse_DescriptorStatus) string {
	l := st.CurrentLimit
	if l == nil {
		return ", no limit"
	}
	limit := fmt.Sprint(l.RequestsPerUnit)
	if l.Unit != pb.RateLimitResponse_RateLimit_UNKNOWN {
		limit += " per " + strings.ToLower(l.Unit.String())
	}
	left := fmt.Sprintf(", %d of %s left, ", st.LimitRemaining, limit)
	reset := st.DurationUntilReset.AsDuration()
	if st.Code == pb.RateLimitResponse_OVER_LIMIT && reset == 0 {
		return fmt.Sprintf("%snever enough for %d", left, max(q.hits, 1))
	}
	if reset >= sluice.Never.Truncate(time.Second) {
		return left + "never reset"
	}
	return fmt.Sprintf("%sreset in %v", left, reset)
}
