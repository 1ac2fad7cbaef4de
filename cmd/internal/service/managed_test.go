package service

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/cmd/internal/xds"
)

// configDescriptor is the message as package proto knows messages, written without a look at package xds.
const configDescriptor = `{"name": "rls_conf.proto", "package": "ratelimit.config.ratelimit.v3", "syntax": "proto3", "dependency": ["google/protobuf/struct.proto"],
"messageType": [
	{"name": "RateLimitConfig", "field": [
		{"name": "name", "number": 1, "type": "TYPE_STRING"}, {"name": "domain", "number": 2, "type": "TYPE_STRING"},
		{"name": "descriptors", "number": 3, "label": "LABEL_REPEATED", "type": "TYPE_MESSAGE", "typeName": ".ratelimit.config.ratelimit.v3.RateLimitDescriptor"}]},
	{"name": "RateLimitDescriptor", "field": [
		{"name": "key", "number": 1, "type": "TYPE_STRING"}, {"name": "value", "number": 2, "type": "TYPE_STRING"},
		{"name": "rate_limit", "number": 3, "type": "TYPE_MESSAGE", "typeName": ".ratelimit.config.ratelimit.v3.RateLimitPolicy"},
		{"name": "descriptors", "number": 4, "label": "LABEL_REPEATED", "type": "TYPE_MESSAGE", "typeName": ".ratelimit.config.ratelimit.v3.RateLimitDescriptor"},
		{"name": "shadow_mode", "number": 5, "type": "TYPE_BOOL"}, {"name": "detailed_metric", "number": 6, "type": "TYPE_BOOL"},
		{"name": "quota_mode", "number": 7, "type": "TYPE_BOOL"},
		{"name": "metadata", "number": 8, "type": "TYPE_MESSAGE", "typeName": ".google.protobuf.Struct"},
		{"name": "newer", "number": 100, "type": "TYPE_STRING"}]},
	{"name": "RateLimitPolicy", "field": [
		{"name": "unit", "number": 1, "type": "TYPE_ENUM", "typeName": ".ratelimit.config.ratelimit.v3.RateLimitUnit"},
		{"name": "requests_per_unit", "number": 2, "type": "TYPE_UINT32"}, {"name": "unlimited", "number": 3, "type": "TYPE_BOOL"},
		{"name": "name", "number": 4, "type": "TYPE_STRING"},
		{"name": "replaces", "number": 5, "label": "LABEL_REPEATED", "type": "TYPE_MESSAGE", "typeName": ".ratelimit.config.ratelimit.v3.RateLimitReplace"}]},
	{"name": "RateLimitReplace", "field": [{"name": "name", "number": 1, "type": "TYPE_STRING"}]}],
"enumType": [{"name": "RateLimitUnit", "value": [{"name": "UNKNOWN", "number": 0}, {"name": "SECOND", "number": 1}, {"name": "MINUTE", "number": 2},
	{"name": "HOUR", "number": 3}, {"name": "DAY", "number": 4}, {"name": "MONTH", "number": 5}, {"name": "YEAR", "number": 6}, {"name": "WEEK", "number": 7}]}]}`

var configType = sync.OnceValue(func() protoreflect.MessageDescriptor {
	var d descriptorpb.FileDescriptorProto
	if err := protojson.Unmarshal([]byte(configDescriptor), &d); err != nil {
		panic(err)
	}
	f, err := protodesc.NewFile(&d, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	return f.Messages().ByName("RateLimitConfig")
})

// resource is a RateLimitConfig, from its JSON form.
func resource(t *testing.T, text string) *anypb.Any {
	t.Helper()
	m := dynamicpb.NewMessage(configType())
	require.NoError(t, protojson.Unmarshal([]byte(text), m))
	data, err := proto.Marshal(m)
	require.NoError(t, err)
	return &anypb.Any{TypeUrl: "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig", Value: data}
}

// management is a management server, which the test plays.
type management struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	t        *testing.T
	front    *front
	address  string
	server   *grpc.Server
	requests chan *discovery.DiscoveryRequest
	states   chan *discovery.DiscoveryResponse
}

// front is a port that stays open while servers behind it come and go: it closes connections while there is
// none.
type front struct {
	net.Listener
	mutex sync.Mutex
	to    *behind // nil for none
}

// behind is a server's end of a front.
type behind struct {
	*front
	conns  chan net.Conn
	closed chan struct{}
}

func newFront(t *testing.T) *front {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &front{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mutex.Lock()
			to := f.to
			f.mutex.Unlock()
			if to == nil {
				_ = conn.Close()
				continue
			}
			select {
			case to.conns <- conn:
			case <-to.closed:
				_ = conn.Close()
			}
		}
	}()
	return f
}

func (b *behind) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *behind) Close() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.to == b {
		b.to = nil
		close(b.closed)
	}
	return nil
}

// manage serves behind a port.
func manage(t *testing.T, f *front, options ...grpc.ServerOption) *management {
	t.Helper()
	m := &management{t: t, front: f, address: f.Addr().String(), server: grpc.NewServer(options...), requests: make(chan *discovery.DiscoveryRequest), states: make(chan *discovery.DiscoveryResponse)}
	discovery.RegisterAggregatedDiscoveryServiceServer(m.server, m)
	b := &behind{front: f, conns: make(chan net.Conn), closed: make(chan struct{})}
	f.mutex.Lock()
	f.to = b
	f.mutex.Unlock()
	go func() { _ = m.server.Serve(b) }()
	t.Cleanup(m.server.Stop)
	return m
}

func (m *management) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case m.requests <- req:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case state := <-m.states:
			if err := stream.Send(state); err != nil {
				return err
			}
		}
	}
}

// asked waits for a request.
func (m *management) asked() *discovery.DiscoveryRequest {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), servetest.Patience)
	defer cancel()
	select {
	case req := <-m.requests:
		require.Equal(m.t, xds.TypeURL, req.TypeUrl)
		require.Empty(m.t, req.ResourceNames)
		return req
	case <-ctx.Done():
		m.t.Fatal("the client does not ask")
		return nil
	}
}

// send sends a state, and returns how the client answers.
func (m *management) send(version, nonce string, resources ...*anypb.Any) *discovery.DiscoveryRequest {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), servetest.Patience)
	defer cancel()
	select {
	case m.states <- &discovery.DiscoveryResponse{VersionInfo: version, Nonce: nonce, TypeUrl: xds.TypeURL, Resources: resources}:
	case <-ctx.Done():
		m.t.Fatal("nobody listens to the management server")
	}
	req := m.asked()
	require.Equal(m.t, nonce, req.ResponseNonce)
	return req
}

func (m *management) accepted(version, nonce string, resources ...*anypb.Any) {
	m.t.Helper()
	req := m.send(version, nonce, resources...)
	require.Nil(m.t, req.ErrorDetail, "%v", req.ErrorDetail)
	require.Equal(m.t, version, req.VersionInfo)
}

// startManaged runs the service, whose first rules are those of resources.
func startManaged(t *testing.T, m *management, resources []*anypb.Any, args ...string) *running {
	t.Helper()
	told := make(chan struct{})
	go func() {
		defer close(told)
		if req := m.asked(); assert.Equal(t, "node-1", req.Node.GetId()) && assert.Empty(t, req.VersionInfo+req.ResponseNonce) {
			m.accepted("1", "a", resources...)
		}
	}()
	r := start(t, append([]string{"--xds", m.address, "--xds-node", "node-1", "--xds-retry", "1ms", "--xds-retry-max", "20ms", "--manual-clock"}, args...)...)
	<-told // or the test could take the answer to the first rules, which begin to count before it is sent
	return r
}

const (
	managedTwo  = `{"name": "one", "domain": "d", "descriptors": [{"key": "two", "rate_limit": {"unit": "MINUTE", "requests_per_unit": 2}}]}`
	managedNine = `{"name": "one", "domain": "d", "descriptors": [{"key": "two", "rate_limit": {"unit": "MINUTE", "requests_per_unit": 9}}]}`
	managedBad  = `{"name": "bad", "domain": "d", "descriptors": [{"key": "two", "rate_limit": {"requests_per_unit": 9}}]}`
	managedE    = `{"name": "other", "domain": "e", "descriptors": [{"key": "two", "rate_limit": {"unit": "MINUTE", "requests_per_unit": 5}}]}`
)

func askDomain(t *testing.T, conn *grpc.ClientConn, domain string) *pb.RateLimitResponse_DescriptorStatus {
	req := one("two", "x")
	req.Domain = domain
	return ask(t, conn, req).Statuses[0]
}

// TestManaged follows a management server: first rules, others, bad ones, two domains, none.
func TestManaged(t *testing.T) {
	m := manage(t, newFront(t))
	r := startManaged(t, m, []*anypb.Any{resource(t, managedTwo)})
	conn := r.dial()
	assert.Equal(t, 1, remaining(t, conn, "two"))
	m.accepted("2", "b", resource(t, managedNine), resource(t, managedE))
	assert.Equal(t, 7, remaining(t, conn, "two"), "counts stay")
	assert.EqualValues(t, 4, askDomain(t, conn, "e").LimitRemaining)

	m.send("3", "c", resource(t, managedE), resource(t, managedBad))
	req := m.send("3", "c2", resource(t, managedE), resource(t, managedBad)) // again: refused, and neither counted nor logged
	assert.Equal(t, "2", req.VersionInfo, "which stays in force")
	assert.EqualValues(t, 3, req.ErrorDetail.GetCode())
	assert.Contains(t, req.ErrorDetail.GetMessage(), "bad:")
	assert.Contains(t, req.ErrorDetail.GetMessage(), "d.two: unit is ")
	assert.Equal(t, 6, remaining(t, conn, "two"))
	assert.EqualValues(t, 3, askDomain(t, conn, "e").LimitRemaining, "all or none")
	assert.Contains(t, r.config(), "the last load was refused")
	assert.Equal(t, 1, r.lines("level=ERROR", "the rules are refused, and the old ones stay"), r.log)
	got := r.scrape()
	assert.EqualValues(t, 1, got[`sluice_config_reloads_total{result="error"}`])
	assert.EqualValues(t, 2, got[`sluice_config_reloads_total{result="success"}`])
	assert.EqualValues(t, 0, got[`sluice_config_last_reload_successful`])

	m.accepted("4", "d", resource(t, managedE), resource(t, managedNine)) // what was in force before the bad one
	assert.EqualValues(t, 1, r.scrape()[`sluice_config_last_reload_successful`])
	for nonce, bad := range map[string]*anypb.Any{
		"no resource": {TypeUrl: "type.googleapis.com/other"}, "no message": {TypeUrl: xds.TypeURL, Value: []byte{0x1a, 5, 1}},
		"no domain": resource(t, `{"name": "x"}`), "twice": resource(t, strings.Replace(managedE, "other", "again", 1)),
	} {
		req := m.send("5", nonce, resource(t, managedE), bad)
		assert.NotEmpty(t, req.ErrorDetail.GetMessage(), nonce)
		assert.Equal(t, "4", req.VersionInfo)
	}
	m.accepted("6", "e", resource(t, managedNine))
	assert.Nil(t, askDomain(t, conn, "e").CurrentLimit, "the domain is gone")
	assert.Equal(t, 5, remaining(t, conn, "two"))
	m.accepted("7", "f")
	assert.Nil(t, ask(t, conn, one("two", "x")).Statuses[0].CurrentLimit)
	assert.Contains(t, r.log.String(), "there are no rules: nothing is limited")
	r.end()
}

// TestManaged_ComesBack: rules and counts stay while the server is away, and are not loaded again if it says the
// same when it is back.
func TestManaged_ComesBack(t *testing.T) {
	m := manage(t, newFront(t))
	r := startManaged(t, m, []*anypb.Any{resource(t, managedTwo)})
	conn := r.dial()
	assert.Equal(t, 1, remaining(t, conn, "two"))
	m.server.Stop()
	servetest.Eventually(t, "a line about it", func() bool { return r.lines("level=WARN", "no connection to the management server", m.address) > 0 })
	assert.Equal(t, 0, remaining(t, conn, "two"))
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 200, code)

	back := manage(t, m.front)
	req := back.asked()
	assert.Equal(t, "node-1", req.Node.GetId())
	assert.Empty(t, req.VersionInfo+req.ResponseNonce, "versions of a server that starts again may begin anew")
	back.accepted("1", "a", resource(t, managedTwo))
	assert.Contains(t, r.config(), "generation 1, ")
	back.accepted("2", "b", resource(t, managedNine))
	assert.Contains(t, r.config(), "generation 2, ")
	assert.Equal(t, 6, remaining(t, conn, "two"))
}

// TestManaged_FirstRules: bad ones are refused, and no port opens until there are good ones.
func TestManaged_FirstRules(t *testing.T) {
	m := manage(t, newFront(t))
	told := make(chan struct{})
	go func() {
		defer close(told)
		m.asked()
		req := m.send("1", "a", resource(t, managedBad))
		assert.NotNil(t, req.ErrorDetail)
		assert.Empty(t, req.VersionInfo, "none is in force")
		m.accepted("2", "b", resource(t, managedTwo))
	}()
	r := start(t, "--xds", m.address, "--manual-clock")
	<-told
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	assert.Equal(t, 1, r.lines("level=ERROR", "the rules are refused"), r.log)
	assert.Equal(t, 1, r.lines("level=WARN", "waiting for rules"), r.log)
	got := r.scrape()
	assert.EqualValues(t, 1, got[`sluice_config_reloads_total{result="error"}`])
	assert.EqualValues(t, 1, got[`sluice_config_reloads_total{result="success"}`])
}

// TestManaged_StopsWhileItWaits, and does not serve.
func TestManaged_StopsWhileItWaits(t *testing.T) {
	m := manage(t, newFront(t))
	c := configure(t, "--xds", m.address)
	require.NoError(t, c.Check())
	stop, done := make(chan os.Signal), make(chan error, 1)
	go func() {
		done <- Run(c, slog.New(slog.DiscardHandler), Hooks{Stop: stop, Ready: func(map[string]net.Addr) { t.Error("it serves without rules") }})
	}()
	m.asked()
	stop <- os.Interrupt
	require.NoError(t, <-done)
}

// TestManaged_WithoutFirstRules: --start-without-rules opens the ports; --healthy-with-rules waits for a domain.
func TestManaged_WithoutFirstRules(t *testing.T) {
	m := manage(t, newFront(t))
	r := start(t, "--xds", m.address, "--start-without-rules", "--healthy-with-rules", "--manual-clock")
	m.asked()
	code, _ := r.get("http", "/healthcheck")
	assert.Equal(t, 500, code)
	assert.Nil(t, ask(t, r.dial(), one("two", "x")).Statuses[0].CurrentLimit)
	m.accepted("1", "a", resource(t, managedTwo))
	code, _ = r.get("http", "/healthcheck")
	assert.Equal(t, 200, code)
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
}

// TestManaged_AsFromFiles: all fields of the message mean what the file's mean, and calls get the same answers.
func TestManaged_AsFromFiles(t *testing.T) {
	m := manage(t, newFront(t))
	managed := startManaged(t, m, []*anypb.Any{resource(t, `{"name": "n", "domain": "d", "descriptors": [
		{"key": "no", "value": "010", "newer": "x", "rate_limit": {"unit": "WEEK", "requests_per_unit": 3, "name": "yes"}},
		{"key": "all", "rate_limit": {"unlimited": true, "replaces": [{"name": "yes"}]}},
		{"key": "ban", "rate_limit": {"unit": "YEAR"}},
		{"key": "shadow", "shadow_mode": true, "rate_limit": {"unit": "SECOND", "requests_per_unit": 1}},
		{"key": "quota", "quota_mode": true, "detailed_metric": true, "rate_limit": {"unit": "MONTH", "requests_per_unit": 1}},
		{"key": "a", "value": "x*", "metadata": {"tier": "5", "n": 5, "list": [{"b": true}, null]}, "rate_limit": {"unit": "DAY", "requests_per_unit": 4}, "descriptors": [
			{"key": "ü\u2028\"\n", "value": "~", "rate_limit": {"unit": "HOUR", "requests_per_unit": 4294967}}]}]}`)}, "--dynamic-metadata")
	files := start(t, "--manual-clock", "--dynamic-metadata", "--rules", rulesFile(t, `
domain: d
descriptors:
- {key: "no", value: "010", rate_limit: {unit: week, requests_per_unit: 3, name: "yes"}}
- {key: all, rate_limit: {unlimited: true, replaces: [{name: "yes"}]}}
- {key: ban, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: quota, quota_mode: true, detailed_metric: true, rate_limit: {unit: month, requests_per_unit: 1}}
- key: a
  value: x*
  metadata: {tier: "5", "n": 5, list: [{b: true}, null]}
  rate_limit: {unit: day, requests_per_unit: 4}
  descriptors:
  - {key: "ü\u2028\"\n", value: "~", rate_limit: {unit: hour, requests_per_unit: 4294967}}
`))
	rulesOf := func(r *running) string {
		list, _, _ := strings.Cut(r.config(), "\n#") // behind it, the digest
		return list
	}
	assert.Equal(t, rulesOf(files), rulesOf(managed))
	assert.NotEmpty(t, rulesOf(files))
	one, other := managed.dial(), files.dial()
	for range 3 {
		for _, pairs := range [][]string{{"no", "010"}, {"no", "8"}, {"all", "x"}, {"ban", "x"}, {"shadow", "x"}, {"quota", "q"}, {"a", "xy"}, {"a", "y"}, {"a", "xy", "ü\u2028\"\n", "~"}} {
			req := &pb.RateLimitRequest{Domain: "d", HitsAddend: 2}
			req.Descriptors = append(req.Descriptors, descriptor(pairs...))
			want, got := ask(t, other, req), ask(t, one, req)
			require.True(t, proto.Equal(want, got), "%v: %v, and from files %v", pairs, got, want)
		}
	}
	_, want := files.get("debug", "/stats")
	_, got := managed.get("debug", "/stats")
	assert.Equal(t, want, got)
}

func TestManaged_TLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, "service")
	pair := func(name string, cert, key []byte) (string, string) {
		return write(t, filepath.Join(dir, name+".crt"), string(cert)), write(t, filepath.Join(dir, name+".key"), string(key))
	}
	certFile, keyFile := pair("server", cert, key)
	ca := write(t, filepath.Join(dir, "ca"), string(a.pem))
	transport, err := credentials.NewServerTLSFromFile(certFile, keyFile)
	require.NoError(t, err)
	m := manage(t, newFront(t), grpc.Creds(transport))
	r := startManaged(t, m, []*anypb.Any{resource(t, managedTwo)}, "--xds-tls", "--xds-ca", ca, "--xds-san", "service")
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))

	wrong := start(t, "--xds", m.address, "--xds-tls", "--xds-ca", ca, "--xds-san", "another", "--start-without-rules")
	servetest.Eventually(t, "a line about the name", func() bool { return wrong.lines("level=WARN", "no connection", "another") > 0 })
}
