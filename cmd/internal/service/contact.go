package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/cmd/internal/redisconn"
	"github.com/sluice-go/sluice/redislimit"
)

// The first contact with the store. A process that has never reached it knows nothing of the other processes: neither the hits that they
// have admitted, nor their number. So it is not healthy until the store has answered once, unless the configuration says how calls are
// decided without. A cause that does not pass by itself ends the service.

const (
	contactTime  = 2 * time.Second // how long one try may take
	contactAgain = time.Second     // the time from one try to the next
)

// contact asks the store for the first time, before ports are open, so that the first calls find connections and scripts. Its error
// ends the start.
func (s *server) contact(stop <-chan os.Signal) error {
	if s.store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), contactTime)
	defer cancel()
	outcome := make(chan error, 1)
	go func() { outcome <- s.reach(ctx) }()
	select {
	case err := <-outcome:
		return s.contacted(err)
	case <-stop:
		return errStopped
	}
}

// contacted notes the outcome of a try. It returns the error if that cannot pass by itself.
func (s *server) contacted(err error) error {
	c := &s.config.Store
	switch {
	case err == nil:
		s.reached.Store(true)
		s.log.Info("counts are shared", "servers", c.Redis.Servers(), "per second", c.PerSecond.Servers(), "keys", c.Keys, "on failure", c.OnFailure, "leases", c.Leases)
	case lasting(err):
		return fmt.Errorf("the store refuses this service: %w", err)
	case s.unanswered != err.Error():
		s.unanswered = err.Error()
		s.log.Warn("the store has not answered yet", "servers", c.Redis.Servers(), "now", c.beforeContact(), "error", err)
	}
	return nil
}

// contactLater tries until the store has answered, or ctx ends.
func (s *server) contactLater(ctx context.Context) {
	for !s.reached.Load() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(contactAgain):
		}
		try, cancel := context.WithTimeout(ctx, contactTime)
		err := s.reach(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err := s.contacted(err); err != nil {
			s.failed <- err
			return
		}
	}
	s.updateHealth()
}

// needsContact reports whether the service cannot decide before the store has answered once.
func (c *StoreConfig) needsContact() bool {
	return c.OnFailure == failures[redislimit.FailClosed] || c.OnFailure == failures[redislimit.LocalShare] && c.Replicas == 0
}

// beforeContact says in words what happens to calls before the store has answered once.
func (c *StoreConfig) beforeContact() string {
	switch {
	case c.needsContact():
		return "not healthy, and calls are refused"
	case c.OnFailure == failures[redislimit.FailOpen]:
		return "calls are admitted"
	default:
		return fmt.Sprintf("this process enforces its part of --replicas %d", c.Replicas)
	}
}

// reach asks all servers of the store. An error names the flag of the server.
func (s *server) reach(ctx context.Context) error {
	for i, p := range s.store.parts() {
		err := p.Reach(ctx)
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			to, advice := []*redisconn.Config{&s.config.Store.Redis, &s.config.Store.PerSecond}[i], "is it a port with TLS? want rediss:// then"
			if to.Secure() {
				advice = "does it want a certificate of its clients? want --redis-cert and --redis-key then"
			}
			err = fmt.Errorf("%w: the server ends connections before it answers; %s", err, advice)
		}
		return fmt.Errorf("--%s: %w", partNames[i], err)
	}
	return nil
}

// refusals are in texts of Redis about passwords, rights and the kind of a server.
var refusals = []string{"WRONGPASS", "NOAUTH", "NOPERM", "DENIED", "invalid password", "ACL failure in script", "can't run this command", "cluster support disabled", "without any password configured"}

// lasting reports whether an error of a first contact cannot pass by itself: a certificate, a password, or rights.
func lasting(err error) bool {
	var unverified *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var noTLS tls.RecordHeaderError
	var refused redis.Error
	for e := err; e != nil; e = errors.Unwrap(e) {
		if op, ok := e.(*net.OpError); ok && op.Op == "remote error" { // an alert of TLS, whose type is not exported
			return op.Err.Error() != "tls: internal error"
		}
	}
	if errors.As(err, &refused) {
		return slices.ContainsFunc(refusals, func(text string) bool { return strings.Contains(err.Error(), text) })
	}
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore) {
		return false // the clock of this machine may not be set yet
	}
	return errors.As(err, &unverified) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &noTLS)
}
