package page

import (
	"bytes"
	"html"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func written(t *testing.T, p Page) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Write(&b, p))
	return b.String()
}

func of(values ...float64) (out []*float64) {
	for _, v := range values {
		out = append(out, &v)
	}
	return out
}

// TestWrite_NeedsNothingElse: the page names nothing to be loaded, and forbids it.
func TestWrite_NeedsNothingElse(t *testing.T) {
	text := written(t, Page{Title: "T"})
	raw := text
	text = html.UnescapeString(text)
	assert.Contains(t, text, `content="default-src 'none'; style-src 'sha256-`)
	assert.NotContains(t, text, "unsafe-inline")
	for kind, pattern := range map[string]string{"style": `(?s)<style>(.*?)</style>`, "script": `(?s)<script>(.*?)</script>`} {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(raw, -1)
		require.Len(t, found, 1)
		assert.Contains(t, text, kind+"-src '"+hash(found[0][1])+"'", "of what is there")
	}
	for _, loads := range []string{`\ssrc\s*=`, `\shref\s*=`, `@import`, `url\(`, `fetch\(`, `XMLHttpRequest`, `WebSocket`, `importScripts`} {
		assert.NotRegexp(t, regexp.MustCompile(loads), text)
	}
	assert.Contains(t, text, "MIT License", "of uPlot, which wants to be in all copies")
	assert.Less(t, len(text), 64<<10)
}

// TestWrite_TextStaysText, wherever it comes.
func TestWrite_TextStaysText(t *testing.T) {
	bad := `</script><img src=x onerror=alert(1)><!--"'{{.}}` + "`"
	five := 5.0
	text := written(t, Page{Title: bad, Command: bad, Facts: []string{bad}, Sections: []Section{{
		Title: bad, About: bad, Texts: []Text{{bad, bad}}, Table: &Table{Header: []string{bad}, Rows: [][]string{{bad, bad}}},
		Chart: &Chart{X: Axis{Label: bad}, Y: Axis{Label: bad}, Values: []float64{1}, Series: []Series{{bad, []*float64{&five}}}},
	}}})
	assert.NotContains(t, text, "<img")
	assert.Equal(t, 2, strings.Count(text, "</script>"), "that of the values, and that of the program")
	assert.Equal(t, strings.Count(written(t, Page{}), "<!--"), strings.Count(text, "<!--"))
}

// TestWrite_ChartsHaveTables: each value is there to be read aloud, and what is missing says so.
func TestWrite_ChartsHaveTables(t *testing.T) {
	text := written(t, Page{Sections: []Section{{Title: "S", Chart: &Chart{
		X: Axis{Label: "time", Time: true}, Y: Axis{Label: "n"}, Values: []float64{1772442000, 1772442000.5},
		Series: []Series{{"a", of(1, 2.25)}, {"b", []*float64{nil, of(1234567)[0]}}},
	}}}})
	for _, row := range []string{
		`<tr><th scope="col">time</th><th scope="col" class="n">a</th><th scope="col" class="n">b</th></tr>`,
		`<tr><th scope="row">2026-03-02 09:00:00</th><td class="n">1</td><td class="n">-</td></tr>`,
		`<tr><th scope="row">2026-03-02 09:00:00.5</th><td class="n">2.25</td><td class="n">1.23457e`,
	} {
		assert.Contains(t, text, row)
	}
	assert.Contains(t, text, `aria-label="Chart: S. Its values are in the table below."`)
}

func TestWrite_Unwritable(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	assert.Error(t, Write(w, Page{}))
}

// TestWrite_Sparks: a row has its drawing, and all of its values to be read aloud.
func TestWrite_Sparks(t *testing.T) {
	text := written(t, Page{Sections: []Section{{Title: "S", Table: &Table{Header: []string{"client"}, Rows: [][]string{{"a"}, {"b"}},
		Sparks: []Spark{{`denials of "a"`, []int64{0, 1, 100}}, {"denials of b", []int64{2}}}}}}})
	assert.Contains(t, text, `<th scope="col">over time</th>`)
	assert.Contains(t, text, `aria-label="denials of &#34;a&#34;, at most 100, in 3 equal parts of the time: 0, 1, 100" viewBox="0 0 12 24"`)
	assert.Contains(t, text, `<path d="M6 24v-1.5M10 24v-24.0"/>`)
	assert.Contains(t, text, `<path d="M2 24v-24.0"/>`)
}
