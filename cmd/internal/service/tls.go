package service

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// certificates makes the TLS configuration from files, and makes it anew when they change.
type certificates struct {
	config *Config
	failed func(error) // called once for each reason

	mutex   sync.Mutex
	current *tls.Config // for gRPC
	web     *tls.Config // for HTTP
	files   [3][]byte   // the contents from which current is made
	checked time.Time
	failure string
}

// recheck is the least time between two looks at the files. They are looked at in handshakes.
const recheck = time.Second

func newCertificates(c *Config, failed func(error)) (*certificates, error) {
	t := &certificates{config: c, failed: failed, checked: time.Now()}
	var err error
	if t.files, err = t.read(); err == nil {
		t.current, t.web, err = t.load(t.files)
	}
	return t, err
}

// server returns the configuration of a listener, for gRPC or for HTTP. If the files cannot be used, the last ones stay in
// force.
func (t *certificates) server(web bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			t.mutex.Lock()
			defer t.mutex.Unlock()
			if now := time.Now(); now.Sub(t.checked) >= recheck {
				t.checked = now
				t.refresh()
			}
			if web {
				return t.web, nil
			}
			return t.current, nil
		},
	}
}

// refresh is called with t.mutex held. After a failure the files are tried again: they may be in the middle of a
// change.
func (t *certificates) refresh() {
	files, err := t.read()
	if err == nil && slices.EqualFunc(files[:], t.files[:], bytes.Equal) {
		t.failure = ""
		return
	}
	var next, web *tls.Config
	if err == nil {
		next, web, err = t.load(files)
	}
	if err != nil {
		if err.Error() != t.failure {
			t.failure = err.Error()
			t.failed(err)
		}
		return
	}
	t.current, t.web, t.files, t.failure = next, web, files, ""
}

func (t *certificates) read() (files [3][]byte, err error) {
	for i, f := range [3]struct{ flag, name string }{
		{"tls-cert", t.config.TLSCert}, {"tls-key", t.config.TLSKey}, {"client-ca", t.config.ClientCA},
	} {
		if f.name == "" {
			continue
		}
		if files[i], err = os.ReadFile(f.name); err != nil {
			return files, fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	return files, nil
}

func (t *certificates) load(files [3][]byte) (grpc, web *tls.Config, err error) {
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-cert %s and --tls-key %s: %w", t.config.TLSCert, t.config.TLSKey, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}
	if t.config.ClientCA != "" {
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(files[2]) {
			return nil, nil, fmt.Errorf("--client-ca %s: no certificate in it; want one in PEM form", t.config.ClientCA)
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
		if san := t.config.ClientSAN; san != "" {
			c.VerifyConnection = func(s tls.ConnectionState) error { return checkName(s, san) }
		}
	}
	web = c.Clone()
	web.NextProtos = []string{"http/1.1"}
	if t.config.ClientCA == "" {
		return c, web, nil
	}
	web.ClientAuth = tls.VerifyClientCertIfGiven // server.certified looks for it: health checks have none
	if check := c.VerifyConnection; check != nil {
		web.VerifyConnection = func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			return check(s)
		}
	}
	return c, web, nil
}

// checkName looks for a name in the client's certificate.
func checkName(s tls.ConnectionState, san string) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the client has no certificate")
	}
	leaf := s.PeerCertificates[0]
	names := slices.Concat(leaf.DNSNames, leaf.EmailAddresses)
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	if !slices.Contains(names, san) {
		return fmt.Errorf("the client's certificate is for %q, not for %q", names, san)
	}
	return nil
}
