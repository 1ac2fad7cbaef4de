package service

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// The doors over HTTP, and who may use them.

// otherSite reports whether a page of another site has made a browser send the request.
func otherSite(r *http.Request) bool {
	asked := *r
	asked.Method = http.MethodPost // the rules are for requests that change something, which all here do
	return crossOrigin.Check(&asked) != nil
}

var crossOrigin = http.NewCrossOriginProtection()

// ownSite refuses requests that pages of other sites make browsers send. Requests that a proxy asks about have the headers of its
// client, who may come from another site: passed reports whether a request is such.
func ownSite(h http.Handler, passed func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if otherSite(r) && !passed(r) {
			http.Error(w, "not for other sites", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// byProxy reports whether a request has headers that proxies add, and pages cannot.
func (s *server) byProxy(r *http.Request) bool {
	return slices.ContainsFunc([]string{s.config.ClientHeader, "X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-Host"}, func(name string) bool {
		return r.Header.Get(name) != ""
	})
}

func byNobody(*http.Request) bool { return false }

// toPage reports whether a request is for a page of the debug port that is the same for all, and that other sites may link to.
func toPage(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/" || r.URL.Path == "/live")
}

// certified refuses clients of the HTTP port without a certificate of --client-ca. Health checks have no certificate.
func (s *server) certified(h http.Handler) http.Handler {
	c := s.config
	if c.ClientCA == "" || c.HTTPPlain {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/healthcheck":
		case c.HTTPTLS && !hasCertificate(r):
			http.Error(w, "there is no certificate of the client; want one that --client-ca has signed", http.StatusForbidden)
			return
		case !c.HTTPTLS && !loopback(r.RemoteAddr):
			http.Error(w, "--client-ca says who may ask, and this port only answers its own machine; want --http-tls, or --http-plain to answer all", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func hasCertificate(r *http.Request) bool {
	c, ok := r.Context().Value(httpConnKey{}).(*httpConn)
	if !ok {
		return false
	}
	t, ok := c.Conn.(*tls.Conn)
	return ok && len(t.ConnectionState().VerifiedChains) > 0
}

// loopback reports whether an address is of this machine only.
func loopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// ownHost refuses requests for names that are not of the debug port: a page could have its name lead here, and would then be no other
// site. An address, localhost and --debug-hosts are.
func (s *server) ownHost(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		_, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil && host != "localhost" && host != "" && !slices.Contains(s.config.DebugHosts, host) {
			http.Error(w, "this port is not known by that name; want its address, localhost, or a name of --debug-hosts", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// warnPlain says, at the start, that --client-ca does not guard the HTTP port.
func (s *server) warnPlain() {
	switch c := s.config; {
	case c.ClientCA == "" || c.HTTP == "" || c.HTTPTLS:
	case c.HTTPPlain:
		s.log.Warn("--client-ca does not guard the HTTP port: whoever reaches it can count, and give hits back", "http", c.HTTP)
	default:
		s.log.Warn("--client-ca guards gRPC only: the HTTP port answers nothing but /healthcheck to other machines; want --http-tls, or --http-plain to answer all", "http", c.HTTP)
	}
}
