// Package xds gets rules from a management server, as Envoy Gateway has one: state of the world over the
// aggregated discovery service.
package xds

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-go/sluice/rules"
)

// TypeURL is the type of the resources: one a domain.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// maxMessage bounds an answer of the management server, in bytes.
const maxMessage = 64 << 20

// idlePing is how long the server may be silent before the client asks whether it is there: more than the
// five minutes that gRPC's servers want between such questions.
const idlePing = 6 * time.Minute

// A Client asks a management server.
type Client struct {
	Server string // HOST:PORT
	Node   string // the node id, by which the server knows whose rules to send
	TLS    TLS

	// Retry is how long the client waits after a connection that has failed, or ended, give or take a half;
	// twice as long after each further one that brought nothing, up to RetryMax.
	Retry, RetryMax time.Duration

	// Apply puts the rules of an answer, sorted by name, into force, all of them or none. If err is not nil, the answer could
	// not be read, and Apply returns that. The server is told the error. An answer that repeats the last one is not
	// applied again.
	Apply func(files []rules.File, err error) error
	Log   *slog.Logger

	last *state // nil before the first answer
}

// TLS is how the connection is encrypted. The files are read for each connection.
type TLS struct {
	On        bool
	CA        string // file of certificates that must have signed the server's; empty for the system's
	Cert, Key string // files of the client's certificate, empty for none
	Name      string // that the server's certificate must have; empty for the name in the address
}

// Run asks until ctx ends, one connection after the other.
func (c *Client) Run(ctx context.Context) {
	wait := c.Retry
	for ctx.Err() == nil {
		heard, err := c.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			wait = c.Retry
		}
		next := jitter(wait)
		c.Log.Warn("no connection to the management server: the rules stay as they are", "server", c.Server, "error", err, "next_try_in", next)
		pause(ctx, next)
		wait = min(2*wait, c.RetryMax)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// jitter is d, give or take a half, so that clients of a server that starts again do not come all at once.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// connect makes one connection, and returns when it ends: whether an answer has come, and why it has ended.
func (c *Client) connect(ctx context.Context) (heard bool, err error) {
	transport := insecure.NewCredentials()
	if c.TLS.On {
		config, err := c.TLS.Config()
		if err != nil {
			return false, err
		}
		transport = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(c.Server, grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: idlePing}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	return c.converse(stream)
}

// converse asks for all resources, and answers each state of them: by its version if it is in force, or by
// the error and the version that stays. The first request names no version, though rules may be in force:
// a server that has started again may use the same versions for other rules.
func (c *Client) converse(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient) (heard bool, err error) {
	request := &discovery.DiscoveryRequest{TypeUrl: TypeURL, Node: &core.Node{Id: c.Node, UserAgentName: "sluice"}}
	accepted := ""
	for {
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // Recv says why there is an end
			return heard, err
		}
		answer, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		heard = true
		refused := c.take(answer)
		if refused != nil && request.ErrorDetail != nil {
			// Servers that keep no record of refusals send a state again as soon as they are told of one:
			// without a pause the two would do nothing else.
			pause(stream.Context(), jitter(c.Retry))
		}
		request = &discovery.DiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: answer.Nonce}
		if refused != nil {
			request.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: reason(refused)}
		} else {
			accepted = answer.VersionInfo
		}
		request.VersionInfo = accepted
	}
}

// reason is an error's text, as much of it as a request has room for.
func reason(err error) string {
	const most = 16 << 10
	text := err.Error()
	if len(text) > most {
		text = text[:most] + " ..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// state is the last answer of the server.
type state struct {
	files []rules.File // sorted by name
	bad   error        // why it cannot be read
	err   error        // why it is not in force, nil if it is
}

// take applies an answer, and returns why it is refused. An answer like the last one is not applied again, whatever
// its version: loads are counted, and logged.
func (c *Client) take(answer *discovery.DiscoveryResponse) (refused error) {
	files, bad := read(answer)
	if last := c.last; last != nil && fmt.Sprint(last.bad) == fmt.Sprint(bad) && slices.EqualFunc(files, last.files, sameFile) {
		return last.err
	}
	c.last = &state{files: files, bad: bad, err: c.Apply(files, bad)}
	return c.last.err
}

func sameFile(a, b rules.File) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }

// read makes files of an answer.
func read(answer *discovery.DiscoveryResponse) ([]rules.File, error) {
	if answer.TypeUrl != TypeURL {
		return nil, fmt.Errorf("an answer of type %q; want %s", answer.TypeUrl, TypeURL)
	}
	files := make([]rules.File, 0, len(answer.Resources))
	for _, r := range answer.Resources {
		f, err := file(r)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	slices.SortStableFunc(files, func(a, b rules.File) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}

// Config reads the files.
func (t *TLS) Config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.Name}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it; want one in PEM form", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", t.Cert, t.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
