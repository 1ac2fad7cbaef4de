package httplimit_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// startNginx starts nginx with one server that has these directives, and returns its
// address. nginx gets a socket that listens already, so that there is nothing to wait for.
func startNginx(t *testing.T, directives string) string {
	t.Helper()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		t.Skip("there is no nginx here: apt-get install nginx-light")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	defer socket.Close()

	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "logs"), 0o755))
	config := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
daemon off; worker_processes 1; pid nginx.pid; error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
	server { listen %s; %s }
}`, listener.Addr(), directives)), 0o600))
	var log strings.Builder
	cmd := exec.Command(nginx, "-p", dir, "-c", config)
	cmd.Stderr = &log
	cmd.Env = append(os.Environ(), "NGINX=3;")
	cmd.ExtraFiles = []*os.File{socket}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // a kill would leave the worker
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return listener.Addr().String()
}

// rawGet sends a header line as it is over a connection of its own, and returns the status
// and the body of the response.
func rawGet(t *testing.T, addr, line string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+line+"\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err, "%q", line)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

const budget = 2

// byCookieAndUser limits each session and each user to the budget. Requests without either
// pass, so that a credential that the limiter does not see is no limit at all.
func byCookieAndUser(t *testing.T, next http.Handler) http.Handler {
	clock := newClock()
	return wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "session", Limiter: gcra(t, sluice.PerHour(budget), clock), Key: sluice.Must(httplimit.ByCookie("session"))},
			{Name: "user", Limiter: gcra(t, sluice.PerHour(budget), clock), Key: httplimit.ByBasicAuthUser()},
		},
		OnKeyError: httplimit.KeyErrorSkip,
	}, next)
}

// attacks are header lines by which a client might get nginx to read one session, or one
// user, and the limiter another or none. n makes a fresh one.
func attacks(n int) []string {
	bob, fresh := "Ym9iOng=", fmt.Sprintf("session=r%d", n)
	lines := []string{
		"Cookie: session=" + strings.Repeat(" ", n) + "ann",
		"Cookie: session" + strings.Repeat(" ", n) + "=ann",
		"Cookie: session=\t ann", "Cookie: SESSION=ann", "Cookie: Session= ann", "Cookie: \t session=ann",
		"Authorization: Basic " + bob, "Authorization: basic " + bob, "Authorization: Basic" + strings.Repeat(" ", n) + bob,
		"Authorization:" + strings.Repeat(" ", n) + "Basic " + bob, "Authorization:\tBasic " + bob, "Authorization: \t Basic " + bob + "\t",
	}
	for _, real := range []string{
		`session= "ann"`, `session="ann"`, `session=ann\`, "session=ann\x80", "session=\u00e9", "session= ann", "session=ann", "SESSION=ann", "x=1,session=ann", "x, session=ann",
	} {
		lines = append(lines, "Cookie: "+real+"; "+fresh, "Cookie: "+fresh+"; "+real, "Cookie: "+real+"\r\nCookie: "+fresh, "Cookie: "+fresh+"\r\nCookie: "+real)
	}
	return lines
}

// checkBudgets sends all attacks, and checks that no session and no user that nginx has
// read has been served more than its budget.
func checkBudgets(t *testing.T, send func(line string) (status int, seen string)) {
	served := map[string]int{}
	for n := range 4 {
		for _, line := range attacks(n) {
			status, seen := send(line)
			assert.Contains(t, []int{200, 400, 429}, status, "%q", line)
			if status != http.StatusOK {
				continue
			}
			session, user, ok := strings.Cut(seen, "|")
			require.True(t, ok, "%q: %q", line, seen)
			session = strings.TrimRight(session, " \t")
			served["session "+session]++
			served["user "+user]++
			assert.False(t, session == "" && user == "" && strings.Contains(line, "="), "%q is no credential to nginx, and passes", line)
		}
	}
	delete(served, "session ")
	delete(served, "user ")
	for name, n := range served {
		assert.LessOrEqual(t, n, budget, name)
	}
	assert.Equal(t, budget, served["session ann"], "%v", served)
	assert.Equal(t, budget, served["user bob"], "%v", served)
}

// nginx in front passes on what it reads of a request, and the application goes by that.
func TestNginx_InFrontEveryCredentialHasOneBudget(t *testing.T) {
	_, backend := serve(t, false, byCookieAndUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Session")+"|"+r.Header.Get("X-User"))
	})))
	front := startNginx(t, `location / {
		proxy_pass `+backend+`;
		proxy_set_header X-Session $cookie_session; proxy_set_header X-User $remote_user;
	}`)
	checkBudgets(t, func(line string) (int, string) { return rawGet(t, front, line) })
}

// nginx behind a proxy with the middleware gets what HTTP/1.1 makes of the headers.
func TestNginx_BehindEveryCredentialHasOneBudget(t *testing.T) {
	behind := startNginx(t, `location / { return 200 "$cookie_session|$remote_user"; }`)
	target := &url.URL{Scheme: "http", Host: behind}
	handler := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }, ErrorLog: quiet}
	t.Run("protocol=1", func(t *testing.T) {
		_, front := serve(t, false, byCookieAndUser(t, handler))
		checkBudgets(t, func(line string) (int, string) { return rawGet(t, strings.TrimPrefix(front, "http://"), line) })
	})
	t.Run("protocol=2", func(t *testing.T) { // keeps white space
		client, front := serve(t, true, byCookieAndUser(t, handler))
		checkBudgets(t, func(line string) (int, string) {
			req, err := http.NewRequest(http.MethodGet, front, nil)
			require.NoError(t, err)
			for l := range strings.SplitSeq(line, "\r\n") {
				name, value, _ := strings.Cut(l, ":")
				req.Header.Add(name, value)
			}
			resp, err := client.Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			assert.Equal(t, 2, resp.ProtoMajor)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			return resp.StatusCode, string(body)
		})
	})
}
