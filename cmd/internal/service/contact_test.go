package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/servers"
)

const fourAYear = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 4}}\n"

// nobody returns an address at which nobody listens, and a server that can be started there.
func nobody(t *testing.T, options ...string) *servers.Redis {
	binary, err := servers.FindRedis()
	if err != nil {
		t.Skip(err)
	}
	port, err := servers.FreePort()
	require.NoError(t, err)
	return &servers.Redis{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Binary: binary, Options: options}
}

// TestContact_Never: two services that have never reached their store do not each enforce the whole limit: they are not healthy, and refuse calls, until it
// has answered. Then they count together.
func TestContact_Never(t *testing.T) {
	for _, policy := range []string{"local-share", "closed"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel() // it mostly waits
			server := nobody(t)
			args := []string{"--redis", server.Addr, "--leases=false", "--store-budget", "1s", "--on-store-failure", policy, "--rules", rulesFile(t, fourAYear)}
			a, b := start(t, args...), start(t, args...)
			for _, r := range []*running{a, b} {
				conn := r.dial()
				for range 6 {
					_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), one("k", "x"))
					require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
				}
				code, _ := r.get("http", "/healthcheck")
				require.Equal(t, 500, code)
				h, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
				require.NoError(t, err)
				require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, h.Status)
				require.Regexp(t, `the store has not answered yet.*now="not healthy, and calls are refused".*connect: connection refused`, r.log.String())
				require.NotContains(t, r.log.String(), "counts are shared")
			}
			require.NoError(t, server.Restart())
			defer server.Kill()
			for _, r := range []*running{a, b} {
				r.waitHealthy()
				r.waitLog("counts are shared")
			}
			var left []uint32
			for i := range 4 {
				r := []*running{a, b}[i%2]
				servetest.Eventually(t, "the store is asked", func() bool {
					answer, err := pb.NewRateLimitServiceClient(r.dial()).ShouldRateLimit(t.Context(), one("k", "x"))
					if err == nil {
						left = append(left, answer.Statuses[0].LimitRemaining)
					}
					return err == nil
				})
			}
			require.Equal(t, uint32(0), left[3], "%v", left)
		})
	}
}

// waitHealthy waits until the service is healthy.
func (r *running) waitHealthy() {
	r.Helper()
	servetest.Eventually(r.T, "it is healthy", func() bool {
		code, _ := r.get("http", "/healthcheck")
		return code == 200
	})
}

// TestContact_Wanted: a service that is told how many there are, or to admit, decides without a store from the start.
func TestContact_Wanted(t *testing.T) {
	for _, c := range []struct {
		args     string
		admitted int
		now      string
	}{{"--replicas 2", 2, "this process enforces its part of --replicas 2"}, {"--on-store-failure open", 6, "calls are admitted"}} {
		args := append([]string{"--redis", nobody(t).Addr, "--leases=false", "--store-budget", "1s", "--rules", rulesFile(t, fourAYear)}, strings.Fields(c.args)...)
		r := start(t, args...)
		code, _ := r.get("http", "/healthcheck")
		require.Equal(t, 200, code)
		admitted := 0
		for range 6 {
			if ask(t, r.dial(), one("k", "x")).OverallCode == pb.RateLimitResponse_OK {
				admitted++
			}
		}
		require.Equal(t, c.admitted, admitted, c.args)
		require.Contains(t, r.log.String(), c.now)
	}
}

// refused runs a service until its start has failed, and returns its error.
func refused(t *testing.T, args ...string) error {
	t.Helper()
	c := configure(t, append([]string{"--rules", rulesFile(t, fourAYear)}, args...)...)
	require.NoError(t, c.Check())
	done := make(chan error, 1)
	go func() {
		done <- Run(c, slog.New(slog.DiscardHandler), Hooks{Ready: func(map[string]net.Addr) { t.Error("it serves ", args) }})
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(servetest.Patience):
		t.Fatal("the service starts")
		return nil
	}
}

// TestContact_Refused: what cannot pass by itself ends the start, and says why, whatever is to happen without the store.
func TestContact_Refused(t *testing.T) {
	server := servers.StartRedis(t, "--requirepass", "right")
	limited := servers.StartRedis(t)
	client := redis.NewClient(&redis.Options{Addr: limited.Addr})
	defer client.Close()
	require.NoError(t, client.Do(t.Context(), "acl", "setuser", "default", "-zadd").Err())
	for _, c := range []struct{ args, want string }{
		{"--redis redis://:wrong@" + server.Addr, "--redis: WRONGPASS"},
		{"--redis redis://" + server.Addr, "--redis: NOAUTH"},
		{"--redis redis://" + server.Addr + " --replicas 2", "--redis: redislimit: NOAUTH"},
		{"--redis redis://" + server.Addr + " --on-store-failure open", "NOAUTH"},
		{"--redis redis://" + server.Addr + " --store-keys upstream", "NOAUTH"},
		{"--redis redis://" + limited.Addr, "can't run this command"},
		{"--redis redis://" + limited.Addr + " --redis-type cluster", "cluster support disabled"},
		{"--redis redis://" + limited.Addr + " --replicas 1 --redis-per-second redis://:wrong@" + server.Addr, "--redis-per-second: redislimit: WRONGPASS"},
	} {
		err := refused(t, strings.Fields(c.args)...)
		require.ErrorContains(t, err, "the store refuses this service: ", c.args)
		require.ErrorContains(t, err, c.want, c.args)
		require.NotContains(t, err.Error(), "wrong@")
	}
}

// TestContact_TLS: a certificate that nobody trusts, that has another name, or that is missing ends the start, and so does no TLS at all, as far as the
// server says so.
func TestContact_TLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t, "localhost")
	dir := t.TempDir()
	file := func(name string, content []byte) string { return write(t, dir+"/"+name, string(content)) }
	ca, wrong := file("ca.crt", ours.pem), file("wrong.crt", others.pem)
	server := func(clients string) string {
		address := nobody(t).Addr
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		servers.StartRedis(t, "--tls-port", port, "--tls-cert-file", file("s.crt", cert), "--tls-key-file", file("s.key", key), "--tls-ca-cert-file", ca, "--tls-auth-clients", clients)
		return address
	}
	open, strict := server("no"), server("yes")
	named := strings.NewReplacer("127.0.0.1", "localhost")
	for _, c := range []struct{ args, want string }{
		{fmt.Sprintf("--redis rediss://%s --redis-ca %s", named.Replace(open), wrong), "TLS: tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		{fmt.Sprintf("--redis rediss://%s --redis-ca %s", open, ca), "TLS: tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1"},
		{fmt.Sprintf("--redis rediss://%s --redis-ca %s --replicas 2", named.Replace(strict), wrong), "TLS: tls: failed to verify certificate: x509: certificate signed by unknown authority"},
	} {
		err := refused(t, strings.Fields(c.args)...)
		require.ErrorContains(t, err, "the store refuses this service: --redis: ", c.args)
		require.ErrorContains(t, err, c.want, c.args)
	}
	trusted := start(t, "--redis", "rediss://"+named.Replace(open), "--redis-ca", ca, "--rules", rulesFile(t, fourAYear))
	require.Contains(t, trusted.log.String(), "counts are shared")
	// The server's alert may be overtaken by the end of the connection: then the next try has it.
	c := configure(t, "--redis", "rediss://"+named.Replace(strict), "--redis-ca", ca, "--rules", rulesFile(t, fourAYear))
	require.NoError(t, c.Check())
	require.ErrorContains(t, Run(c, slog.New(slog.DiscardHandler), Hooks{}), "tls: certificate required")
	plain := start(t, "--redis", "redis://"+open, "--rules", rulesFile(t, fourAYear))
	require.Contains(t, plain.log.String(), "is it a port with TLS? want rediss:// then")
	other := start(t, "--redis", "rediss://"+servers.StartRedis(t).Addr, "--redis-ca", ca, "--rules", rulesFile(t, fourAYear))
	require.Contains(t, other.log.String(), "TLS: no answer to the handshake: is it a port without TLS?")
}

// TestContact_RefusedLater: a store that refuses the service once it is there ends a service that has waited for it.
func TestContact_RefusedLater(t *testing.T) {
	t.Parallel() // it mostly waits
	server := nobody(t, "--requirepass", "right")
	r := start(t, "--redis", server.Addr, "--rules", rulesFile(t, fourAYear))
	require.NoError(t, server.Restart())
	defer server.Kill()
	require.ErrorContains(t, r.ended(), "the store refuses this service: --redis: NOAUTH")
}

// TestContact_Sentinels: Sentinels that do not answer are named as such.
func TestContact_Sentinels(t *testing.T) {
	one, other := nobody(t).Addr, nobody(t).Addr
	r := start(t, "--redis", "main,"+one+","+other, "--redis-type", "sentinel", "--rules", rulesFile(t, fourAYear))
	require.Regexp(t, `the store has not answered yet.*servers="sentinel `+one+","+other+` of main".*entinel.*connection refused`, r.log.String())
}

// TestLasting: a server that fails, and a clock of this machine that is not set yet, can pass by themselves; other alerts and certificates
// cannot.
func TestLasting(t *testing.T) {
	handshake := func(server *tls.Config) error {
		a, b := net.Pipe()
		defer func() { _, _ = a.Close(), b.Close() }()
		go func() { _ = tls.Server(a, server).Handshake() }()
		return tls.Client(b, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"x"}}).Handshake()
	}
	fails := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("not now") }}
	require.ErrorContains(t, handshake(fails), "internal error")
	require.False(t, lasting(handshake(fails)))
	require.True(t, lasting(handshake(&tls.Config{MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS12})), "no version in common")
	expired := func(from, to time.Duration) error {
		c := &x509.Certificate{NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to)}
		err := x509.CertificateInvalidError{Cert: c, Reason: x509.Expired}
		return fmt.Errorf("x: %w", &tls.CertificateVerificationError{UnverifiedCertificates: []*x509.Certificate{c}, Err: err})
	}
	require.False(t, lasting(expired(time.Hour, 2*time.Hour)))
	require.True(t, lasting(expired(-2*time.Hour, -time.Hour)))
}
