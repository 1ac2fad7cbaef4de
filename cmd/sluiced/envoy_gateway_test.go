package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/cmd/internal/xds"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// gatewayEnvironment are the variables of the container that Envoy Gateway makes, with its names for the mounts
// (/certs) and the xDS server replaced. The ports are of the test.
func gatewayEnvironment(certs, server, redis string) []string {
	return strings.Fields(strings.NewReplacer("/certs", certs, "envoy-gateway:18001", server, "redis.redis.svc:6379", redis).Replace(`
		RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false
		LOG_LEVEL=info USE_STATSD=false
		CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit
		GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/certs/tls.crt GRPC_SERVER_TLS_KEY=/certs/tls.key GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt
		CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key
		CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true
		REDIS_SOCKET_TYPE=tcp REDIS_URL=redis.redis.svc:6379
		USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001 PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml`))
}

// gatewayCerts is one certificate that signs itself, for both sides, as files and for the test's server.
func gatewayCerts(t *testing.T) (string, *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	pair, err := tls.X509KeyPair(cert, keyPEM)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(cert))
	dir := servetest.Files(t, map[string]string{"tls.crt": string(cert), "tls.key": string(keyPEM), "ca.crt": string(cert)})
	return dir, &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// gatewayServer is a management server that tells one state, and whether it is accepted.
type gatewayServer struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	state   *discovery.DiscoveryResponse
	answers chan *discovery.DiscoveryRequest
}

func (g *gatewayServer) StreamAggregatedResources(s discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	g.answers <- first
	if err := s.Send(g.state); err != nil {
		return err
	}
	for {
		answer, err := s.Recv()
		if err != nil {
			return err
		}
		g.answers <- answer
	}
}

func message(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(parts, nil))
}

// TestEnvoyGateway starts replicas with what Envoy Gateway gives its rate limit service, and an empty command line.
func TestEnvoyGateway(t *testing.T) {
	store := servers.StartRedis(t)
	certs, config := gatewayCerts(t)
	unit := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 6) // a year: no window ends within the test
	five := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 5)
	resource := bytes.Join([][]byte{message(1, []byte("eg")), message(2, []byte("eg")), message(3, message(1, []byte("k")), message(3, unit, five))}, nil)
	g := &gatewayServer{answers: make(chan *discovery.DiscoveryRequest, 100), state: &discovery.DiscoveryResponse{
		VersionInfo: "1", Nonce: "1", TypeUrl: xds.TypeURL, Resources: []*anypb.Any{{TypeUrl: xds.TypeURL, Value: resource}}}}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	discovery.RegisterAggregatedDiscoveryServiceServer(server, g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	admitted := 0
	for range 3 {
		p := startServe(t, gatewayEnvironment(certs, l.Addr().String(), store.Addr), "--store-budget", "1m", "--leases=false", "--on-store-failure", "closed")
		first, second := <-g.answers, <-g.answers
		assert.Equal(t, "envoy-ratelimit", first.Node.GetId())
		require.Nil(t, second.ErrorDetail)
		assert.Equal(t, "1", second.VersionInfo)
		servetest.Eventually(t, "it is ready", func() bool {
			body, err := plainGet("http://" + p.addresses["http"] + "/healthcheck")
			return err == nil && body == "OK"
		})
		for range 3 {
			code, _, stderr := p.askFor("-d", "eg", "k=x", "--tls-ca", filepath.Join(certs, "ca.crt"), "--timeout", "1m")
			require.Empty(t, stderr)
			if code == cli.ExitOK {
				admitted++
			}
		}
	}
	assert.Equal(t, 5, admitted, "9 calls to three replicas")
}
