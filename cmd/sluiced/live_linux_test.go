package main

import (
	"context"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// liveProbe runs in the page: it waits for keys that were denied and for rates, pauses, lets axe-core look, and sends what the page has become.
const liveProbe = `"use strict";
const errors = [];
addEventListener("error", e => errors.push(String(e.message || e.target.src)), true);
addEventListener("securitypolicyviolation", e => errors.push("CSP: " + e.blockedURI));
console.error = console.warn = (...all) => errors.push(all.join(" "));
const poll = setInterval(async () => {
  const rate = document.querySelector("#rules td.n");
  if (!document.querySelector("#keys tr") || !rate || rate.textContent === "-") return;
  clearInterval(poll);
  const pause = document.getElementById("pause");
  pause.focus();
  const focused = document.activeElement === pause && pause.matches(":focus-visible");
  pause.click();
  const result = window.axe ? await axe.run().then(r => r.passes.length + " passed;" + r.violations.map(v => v.id + ": " + v.nodes[0].html).join("; ")) : "";
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  await fetch("/probe/done", { method: "POST", body: JSON.stringify({ axe: result, focused, dark, errors: errors, background: getComputedStyle(document.body).backgroundColor, dom: document.documentElement.outerHTML }) });
}, 100);
`

// probed is a debug port as a browser sees it, with liveProbe and axe-core in its pages.
func probed(t *testing.T, debug string, done chan<- string) *httptest.Server {
	t.Helper()
	axe := []byte("")
	if script := os.Getenv("SLUICE_AXE"); script != "" {
		var err error
		axe, err = os.ReadFile(script)
		require.NoError(t, err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: debug})
	proxy.FlushInterval = -1
	proxy.ModifyResponse = func(r *http.Response) error {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
			return nil
		}
		page, err := io.ReadAll(r.Body)
		text := strings.Replace(string(page), "</head>", `<script src="/probe/axe.js"></script><script src="/probe/probe.js"></script></head>`, 1)
		r.Body = io.NopCloser(strings.NewReader(text))
		r.Header.Del("Content-Length")
		r.ContentLength = -1
		return err
	}
	mux := http.NewServeMux()
	serve := func(script []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(script)
		}
	}
	mux.HandleFunc("/probe/axe.js", serve(axe))
	mux.HandleFunc("/probe/probe.js", serve([]byte(liveProbe)))
	mux.HandleFunc("/probe/done", func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			done <- string(body)
		}
	})
	mux.Handle("/", proxy)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// TestHTML_BrowserLive opens the live page of a real service in Chromium, while calls are denied.
func TestHTML_BrowserLive(t *testing.T) {
	chromium := servetest.Installed(t, "chromium", "apt-get install chromium")
	rules := servetest.Files(t, map[string]string{"api.yaml": "domain: api\ndescriptors:\n- {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 5}}\n"})
	for scheme, number := range map[string]string{"light": "1", "dark": "0"} {
		args := []string{"--rules", rules}
		if scheme == "dark" {
			args = append(args, "--live-keys")
		}
		p := startServe(t, nil, args...)
		done := make(chan string, 1)
		s := probed(t, p.addresses["debug"], done)
		ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--remote-debugging-port=0",
			"--user-data-dir="+t.TempDir(), "--blink-settings=preferredColorScheme="+number, s.URL+"/live")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second
		require.NoError(t, cmd.Start())
		var asking sync.WaitGroup
		asked := make(chan struct{})
		asking.Go(func() { // until the page has seen enough
			for {
				select {
				case <-asked:
					return
				default:
					p.askFor("-d", "api", "remote_address=<img src=x onerror=alert(1)>")
				}
			}
		})
		var text string
		select {
		case text = <-done:
		case <-ctx.Done():
			t.Error("the page does not get there")
		}
		close(asked)
		asking.Wait()
		cancel()
		_ = cmd.Wait()
		checkLive(t, scheme, text)
		assert.Equal(t, cli.ExitOK, p.end(syscall.SIGTERM))
	}
}

// checkLive looks at what the page has become.
func checkLive(t *testing.T, scheme, text string) {
	t.Helper()
	var got struct {
		Axe, Background, DOM string
		Focused, Dark        bool
		Errors               []string
	}
	require.NoError(t, json.Unmarshal([]byte(text), &got), text)
	assert.Empty(t, got.Errors, scheme)
	assert.Equal(t, scheme == "dark", got.Dark)
	assert.Equal(t, map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}[scheme], got.Background)
	assert.True(t, got.Focused, "the button can be reached, and shows it")
	assert.Contains(t, got.DOM, `aria-pressed="true"`)
	assert.Contains(t, got.DOM, `role="status">paused</span>`)
	assert.Contains(t, got.DOM, "memory: this process counts, for itself")
	assert.NotContains(t, got.DOM, "<img")
	assert.Regexp(t, `<th scope="row"><button type="button" class="rule" aria-pressed="false">api\.remote_address</button></th><td>5 per hour</td><td class="n">[0-9.,]+</td><td class="n some">[0-9.,]+</td><td class="n">5</td><td class="n">[0-9,]+</td>`, got.DOM)
	if scheme == "dark" {
		assert.Contains(t, html.UnescapeString(got.DOM), `"remote_address"="<img src=x onerror=alert(1)>"`)
	} else {
		assert.Regexp(t, regexp.MustCompile(`<tbody id="keys"><tr><th scope="row">[0-9a-f]{16}</th><td>api.remote_address</td>`), got.DOM)
	}
	if os.Getenv("SLUICE_AXE") != "" {
		assert.Regexp(t, `^[1-9][0-9]+ passed;$`, got.Axe, scheme)
	}
}
