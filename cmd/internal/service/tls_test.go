package service

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// authority signs certificates.
type authority struct {
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	pem    []byte
	serial int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.key, a.serial = key, 1
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue returns a certificate for a name, and its key, both as PEM.
func (a *authority) issue(t *testing.T, name string) (cert, key []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// client is the configuration of a client that trusts a and has the certificate, if there is one.
func (a *authority) client(t *testing.T, cert, key []byte) *tls.Config {
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "service"}
	c.RootCAs.AddCert(a.cert)
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		require.NoError(t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// try calls the service over a connection of its own.
func (r *running) try(c *tls.Config) error {
	conn := r.dial(grpc.WithTransportCredentials(credentials.NewTLS(c)))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.Context(), servetest.Patience)
	defer cancel()
	_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, one("day", "x"))
	return err
}

func TestTLS_Clients(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t, "service")
	tlsArgs := []string{
		"--rules", rulesFile(t, someRules),
		"--tls-cert", write(t, dir+"/cert", string(cert)), "--tls-key", write(t, dir+"/key", string(key)),
	}
	envoyCert, envoyKey := ours.issue(t, "envoy")
	otherCert, otherKey := ours.issue(t, "other")
	strangerCert, strangerKey := theirs.issue(t, "envoy")

	r := start(t, tlsArgs...)
	assert.NoError(t, r.try(ours.client(t, nil, nil)))
	assert.Equal(t, codes.Unavailable, status.Code(r.try(theirs.client(t, nil, nil))), "clients look at the certificate")

	ca := write(t, dir+"/ca", string(ours.pem))
	r = start(t, append(tlsArgs, "--client-ca", ca)...)
	assert.NoError(t, r.try(ours.client(t, otherCert, otherKey)))
	assert.Error(t, r.try(ours.client(t, nil, nil)))
	assert.Error(t, r.try(ours.client(t, strangerCert, strangerKey)))

	r = start(t, append(tlsArgs, "--client-ca", ca, "--client-san", "envoy")...)
	assert.NoError(t, r.try(ours.client(t, envoyCert, envoyKey)))
	assert.Error(t, r.try(ours.client(t, otherCert, otherKey)))
}

func TestTLS_Reload(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	old, fresh := newAuthority(t), newAuthority(t)
	cert, key := old.issue(t, "service")
	certFile, keyFile := write(t, dir+"/cert", string(cert)), write(t, dir+"/key", string(key))
	r := start(t, "--rules", rulesFile(t, someRules), "--tls-cert", certFile, "--tls-key", keyFile)
	require.NoError(t, r.try(old.client(t, nil, nil)))

	cert, key = fresh.issue(t, "service")
	write(t, certFile, string(cert)) // without its key yet
	servetest.Eventually(t, "a complaint", func() bool {
		require.NoError(t, r.try(old.client(t, nil, nil)), "the old certificate stays")
		return strings.Contains(r.log.String(), "the certificates cannot be used, and the old ones stay")
	})
	write(t, keyFile, string(key))
	servetest.Eventually(t, "the new certificate", func() bool { return r.try(fresh.client(t, nil, nil)) == nil })
	assert.Error(t, r.try(old.client(t, nil, nil)))
	require.NoError(t, os.Remove(certFile))
	servetest.Eventually(t, "another complaint", func() bool {
		require.NoError(t, r.try(fresh.client(t, nil, nil)))
		return strings.Count(r.log.String(), "the certificates cannot be used") == 2
	})
	assert.Contains(t, r.log.String(), filepath.Base(certFile))
}

// TestTLS_ComplainsOnce: a failure is logged once, however often it is met.
func TestTLS_ComplainsOnce(t *testing.T) {
	dir := t.TempDir()
	cert, key := newAuthority(t).issue(t, "service")
	c := &Config{TLSCert: write(t, dir+"/cert", string(cert)), TLSKey: write(t, dir+"/key", string(key))}
	var complaints []error
	certs, err := newCertificates(c, func(err error) { complaints = append(complaints, err) })
	require.NoError(t, err)
	refresh := func() {
		certs.mutex.Lock()
		defer certs.mutex.Unlock()
		certs.refresh()
	}
	write(t, c.TLSKey, "x")
	refresh()
	refresh()
	assert.Len(t, complaints, 1)
	write(t, c.TLSKey, string(key))
	refresh()
	assert.Len(t, complaints, 1)
	write(t, c.TLSKey, "x")
	refresh()
	assert.Len(t, complaints, 2, "it is a new failure")
}
