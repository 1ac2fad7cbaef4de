package redislimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Why a primary is not asked. A call waits for the budget, and a dial may take longer: to the call it is late. Its
// client has the reason later.

// Unreached reports whether an error of a client says why it could not connect: that nobody listens, say, or that a certificate is wrong.
// Stats.DialErrors counts such errors.
func Unreached(err error) bool {
	var op *net.OpError
	var unverified *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	var alert tls.AlertError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "remote error" || op.Op == "local error") ||
		errors.As(err, &unverified) || errors.As(err, &noTLS) || errors.As(err, &alert)
}

// tellsWhy reports whether an error says more than that there was no answer.
func tellsWhy(err error) bool {
	if Unreached(err) {
		return true
	}
	var network net.Error
	return !answers(err) && !errors.As(err, &network) && !errors.Is(err, errLate) && !errors.Is(err, errLeft) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, redis.ErrPoolTimeout) && !errors.Is(err, redis.ErrClosed) && !strings.HasSuffix(err.Error(), "EOF")
}

// at notes the address of the primary.
func (l *lane) at(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(node, ":") || strings.Contains(node, "/") { // the client of Sentinels has a word there
		l.node = node
	}
}

// of returns an error that names the primary. The caller holds mu.
func (l *lane) of(err error) error {
	if l.node == "" || strings.Contains(err.Error(), l.node) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, l.node)
}

// because notes an error of a call or of a probe. If it says why the primary is not asked, and OnMode does not know yet, OnMode
// is told. The caller holds mu.
func (l *lane) because(err error) {
	if l.told || l.breaker.state == breakerClosed || !tellsWhy(err) {
		return
	}
	l.told = true
	l.core.explain(l.of(err))
}
