package grpclimit_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/grpclimit"
)

// issue returns a certificate for a subject, signed by an issuer, or by itself.
func issue(t *testing.T, subject pkix.Name, issuer *tls.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: issuer == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	parent, signer := template, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestByTLSSubject(t *testing.T) {
	ca := issue(t, pkix.Name{CommonName: "ca"}, nil)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	ann := pkix.Name{CommonName: "ann", Organization: []string{"Example, Inc."}}
	forged := issue(t, ann, nil)
	for name, tt := range map[string]struct {
		auth tls.ClientAuthType
		cert tls.Certificate
		key  string
		want codes.Code
	}{
		"verified":               {tls.RequireAndVerifyClientCert, issue(t, ann, &ca), `CN=ann,O=Example\, Inc.`, codes.OK},
		"verified, if given":     {tls.VerifyClientCertIfGiven, issue(t, ann, &ca), `CN=ann,O=Example\, Inc.`, codes.OK},
		"none given":             {tls.VerifyClientCertIfGiven, tls.Certificate{}, "error: httplimit: no key: the peer has shown no certificate", codes.InvalidArgument},
		"forged, for any server": {tls.RequireAnyClientCert, forged, "error: httplimit: bad key: the peer's certificate has not been verified", codes.InvalidArgument},
		"without a subject":      {tls.RequireAndVerifyClientCert, issue(t, pkix.Name{}, &ca), "error: httplimit: no key: the peer's certificate has no subject", codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			c, last := keyed(t, grpclimit.ByTLSSubject())
			server := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{issue(t, pkix.Name{CommonName: "server"}, &ca)}, ClientAuth: tt.auth, ClientCAs: pool})
			address := serve(t, &service{}, append(newJudge(t, c).ServerOptions(), grpc.Creds(server))...)
			show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tt.cert, nil } // whoever the server accepts
			client := credentials.NewTLS(&tls.Config{GetClientCertificate: show, RootCAs: pool})
			_, _, err := empty(t, dial(t, address, grpc.WithTransportCredentials(client)))
			assert.Equal(t, tt.want, status.Code(err), "%v", err)
			assert.Equal(t, tt.key, last())
		})
	}
	c, last := keyed(t, grpclimit.ByTLSSubject())
	_, _, err := empty(t, limited(t, c, &service{}))
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.Contains(t, last(), "no certificate", "without TLS")
	requireNoKey(t, grpclimit.ByTLSSubject(), t.Context(), grpclimit.ErrNoKey)
}
