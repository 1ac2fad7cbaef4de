package main

import (
	"encoding/json"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// noteTexts notes where charts write, by canvas: text, left and right end, and height, in pixels. A text that is turned is left out.
const noteTexts = `
window.texts = new Map();
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
	const m = this.getTransform(), width = this.measureText(text).width * m.a;
	const left = m.e + x * m.a - { left: 0, start: 0, center: 0.5, right: 1, end: 1 }[this.textAlign] * width;
	if (m.b === 0 && text !== "") {
		if (!texts.has(this.canvas)) texts.set(this.canvas, []);
		texts.get(this.canvas).push({ Text: text, Left: left, Right: left + width, Y: m.f + y * m.d });
	}
	return write.apply(this, arguments);
};`

// measure puts pages into frames, and says of each how wide it is and what its charts have written.
const measure = `
addEventListener("load", () => {
	const all = [...document.querySelectorAll("iframe")].map(f => {
		const of = f.contentDocument.documentElement, sparks = [...of.querySelectorAll(".spark")].map(s => s.getBoundingClientRect().right);
		const charts = [...f.contentWindow.texts].map(([canvas, texts]) => ({ Width: canvas.width, Texts: texts }));
		return { Width: of.scrollWidth, Sparks: Math.max(0, ...sparks), Charts: charts };
	});
	document.documentElement.dataset.measured = JSON.stringify(all);
});`

// A measuredPage is a page at a width.
type measuredPage struct {
	Width, Sparks float64 // the right ends
	Charts        []struct {
		Width float64
		Texts []writtenText
	}
}

type writtenText struct {
	Text           string
	Left, Right, Y float64
}

// logOf is a log of requests at equal distances.
func logOf(t *testing.T, every time.Duration, client string) string {
	var log strings.Builder
	begin := time.Date(2026, 1, 24, 1, 34, 0, 0, time.UTC)
	for i := range 400 {
		fmt.Fprintf(&log, "{\"client\":%q,\"ts\":%q}\n", client, begin.Add(time.Duration(i)*every).Format(time.RFC3339Nano))
	}
	return writeFile(t, log.String())
}

// TestHTML_Fits: on a phone and on a desk no page is wider than its window, sparklines can be seen, and charts write no label over
// another one, nor past their edge.
func TestHTML_Fits(t *testing.T) {
	servetest.Installed(t, "chromium", "apt-get install chromium")
	fields := []string{"--client-field", "client", "--time-field", "ts"}
	const name, longName = "a-client-whose-name-is-as-long-as-names-of-API-keys-often-are", 1
	runs := [][]string{
		append(fields, "replay", logOf(t, 250*time.Microsecond, "192.0.2.1"), "--algorithm", "all"),
		append(fields, "replay", logOf(t, time.Second, name), "--algorithm", "all"),
		append(fields, "replay", logOf(t, 10*time.Minute, "2001:db8:1234:5678::1")),
		append(fields, "replay", logOf(t, 20*time.Hour, "2001:db8:1234:5678::1"), "--limit", "1/h"),
		append(fields, "replay", logOf(t, 200*time.Hour, "192.0.2.1")),
		{"replay", "--algorithm", "all"},
		{"recommend"},
		{"compare"},
	}
	widths := []int{390, 1280}
	dir := t.TempDir()
	var frames strings.Builder
	for i, args := range runs {
		path := filepath.Join(dir, fmt.Sprint(i, ".html"))
		code, _, stderr := execute(nil, append(args, "--html", path)...)
		require.Equal(t, cli.ExitOK, code, stderr)
		addScript(t, path, "<head>", noteTexts)
		for _, width := range widths {
			fmt.Fprintf(&frames, "<iframe src='%d.html' style='border:0;width:%dpx;height:3000px'></iframe>\n", i, width)
		}
	}
	path := filepath.Join(dir, "all.html")
	require.NoError(t, os.WriteFile(path, []byte("<!doctype html><html><script>"+measure+"</script>"+frames.String()), 0o600))
	dom, _ := browse(t, path, "--allow-file-access-from-files")
	found := regexp.MustCompile(` data-measured="([^"]*)"`).FindStringSubmatch(dom)
	require.NotNil(t, found)
	var pages []measuredPage
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(found[1])), &pages))
	require.Len(t, pages, len(runs)*len(widths))
	for i, p := range pages {
		width, run := float64(widths[i%len(widths)]), i/len(widths)
		assert.LessOrEqual(t, p.Width, width, "%v", runs[run])
		if width > 390 || run != longName {
			assert.LessOrEqual(t, p.Sparks, width, "%v", runs[run])
		}
		assert.NotEmpty(t, p.Charts)
		for _, c := range p.Charts {
			requireReadable(t, c.Width, c.Texts, fmt.Sprint(width, runs[run]))
		}
	}
}

// requireReadable demands that no text ends beyond a chart, or is over another one.
func requireReadable(t *testing.T, width float64, texts []writtenText, of string) {
	t.Helper()
	require.NotEmpty(t, texts)
	for i, a := range texts {
		require.True(t, a.Left >= 0 && a.Right <= width, "%s: %+v of %v", of, a, width)
		for _, b := range texts[:i] {
			if a.Y-b.Y < 10 && b.Y-a.Y < 10 && a != b {
				require.True(t, a.Right < b.Left || b.Right < a.Left, "%s: %+v, %+v", of, a, b)
			}
		}
	}
}
