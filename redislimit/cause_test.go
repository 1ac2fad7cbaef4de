package redislimit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// signedByItself listens with TLS, and a certificate that nobody else has signed.
func signedByItself(t *testing.T) (addr string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// TestCause_Dial: a dial that fails takes the client longer than the budget, so that calls are late. OnMode is told of its error all the same,
// once, with the address; and Stats counts it.
func TestCause_Dial(t *testing.T) {
	for _, own := range []bool{false, true} {
		options := &redis.Options{Addr: signedByItself(t), TLSConfig: &tls.Config{RootCAs: x509.NewCertPool()}, MaxRetries: -1}
		var client redis.UniversalClient = redis.NewClient(options)
		if own {
			var err error
			client, err = NewClient(options)
			require.NoError(t, err)
		}
		defer client.Close()
		causes := make(chan error, 100)
		tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), TierConfig{Replicas: 2, OnMode: func(mode Mode, err error) {
			if mode == ModeDegraded {
				causes <- err
			}
		}})
		for range breakerRun {
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromFallback, from)
		}
		first := <-causes
		require.ErrorContains(t, first, options.Addr)
		if errors.Is(first, errLate) {
			first = <-causes
		}
		var unverified *tls.CertificateVerificationError
		require.ErrorAs(t, first, &unverified)
		require.ErrorContains(t, first, options.Addr)
		probed := tier.Stats().DialErrors
		await(t, "probes", func() bool { return tier.Stats().DialErrors > probed+1 })
		require.Empty(t, causes, "it is told once")
		require.ErrorAs(t, tier.status().Cause, &unverified)
	}
}

// TestCause_Answered: the call that makes those that have failed enough for an outage may itself have been answered.
func TestCause_Answered(t *testing.T) {
	causes := make(chan error, 1)
	bubble(t, TierConfig{OnMode: func(mode Mode, err error) {
		if mode == ModeDegraded {
			causes <- err
		}
	}}, sluice.PerHour(100), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		l, now := tier.router.first, time.Now()
		outcome := func(calls int, err error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.outcome(&group{request: tier.shared.request(tier.shared.plan.Load(), "a"), patience: patience{began: now}, waiters: make([]*waiter, calls)}, err, now)
		}
		outcome(breakerCalls-1, errLate)
		outcome(1, nil)
		require.Equal(t, ModeDegraded, tier.Mode())
		require.ErrorIs(t, tier.status().Cause, errLate)
		time.Sleep(time.Second)
	})
	require.ErrorIs(t, <-causes, errLate)
}

// TestCause tells reasons from errors that say nothing of one.
func TestCause(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, c := range []struct {
		err           error
		dial, becomes bool
	}{
		{nil, false, false},
		{errLate, false, false},
		{errLeft, false, false},
		{io.EOF, false, false},
		{fmt.Errorf("redislimit: %w", io.ErrUnexpectedEOF), false, false},
		{os.ErrDeadlineExceeded, false, false},
		{redis.ErrPoolTimeout, false, false},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, false, false},
		{fmt.Errorf("redislimit: %w", dial), true, true},
		{&net.OpError{Op: "remote error", Err: tls.AlertError(42)}, true, true},
		{tls.RecordHeaderError{}, true, true},
		{&tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}}}, true, true},
		{errors.New("WRONGPASS invalid username-password pair"), false, true},
		{errors.New("LOADING Redis is loading"), false, true},
		{ErrForeignValue, false, false},
	} {
		require.Equal(t, c.dial, Unreached(c.err), "%v", c.err)
		require.Equal(t, c.becomes, tellsWhy(c.err), "%v", c.err)
	}
}

// TestCause_Node: OnMode is told which primary of a cluster does not answer, of each.
func TestCause_Node(t *testing.T) {
	c := startCluster(t, anyServer(t).binary, 0)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.nodes[0].addr}})
	defer client.Close()
	causes := make(chan error, 100)
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(1_000_000)}), TierConfig{OnMode: func(mode Mode, err error) {
		if mode == ModeDegraded {
			causes <- err
		}
	}})
	await(t, "it knows the slots", func() bool {
		_, _ = takeFrom(t, tier, "a", 1)
		return tier.router.slots.Load() != nil
	})
	for _, node := range c.nodes[:2] {
		require.NoError(t, stop(node))
		defer func() { require.NoError(t, resume(node)) }()
		var cause error
		await(t, "it is given up", func() bool {
			for i := range 20 {
				_, _ = takeFrom(t, tier, fmt.Sprint("key", i), 1)
			}
			select {
			case cause = <-causes:
				return true
			default:
				return false
			}
		})
		require.ErrorContains(t, cause, node.addr)
	}
}
