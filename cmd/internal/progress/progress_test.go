package progress

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBar_Show(t *testing.T) {
	var out strings.Builder
	now := time.Unix(1000, 0)
	bar := New(&out)
	bar.now = func() time.Time { return now }
	drawn := func() string {
		text := out.String()
		out.Reset()
		if text != "" {
			assert.Len(t, text, 1+width)
			assert.Equal(t, byte('\r'), text[0])
		}
		return strings.TrimSpace(text)
	}
	bar.Show(100, 1000, 7)
	assert.Equal(t, "[==                      ]  10%  7 lines", drawn())
	now = now.Add(interval - 1)
	bar.Show(200, 1000, 14)
	assert.Empty(t, drawn())
	now = now.Add(2*time.Second - interval + 1)
	bar.Show(250, 1000, 2_400_000)
	assert.Equal(t, "[======                  ]  25%  2.4M lines, 1.2M a second, 6s left", drawn())
	now = now.Add(3 * time.Second)
	bar.Show(1200, 1000, 5_100) // the file has grown
	assert.Equal(t, "[========================] 100%  5.1k lines, 1.0k a second, 0s left", drawn())
	now = now.Add(5 * time.Second)
	bar.Show(1200, 0, 3_000_000_000)
	assert.Equal(t, "3.0G lines, 300.0M a second", drawn())
	now = now.Add(100 * 365 * 24 * time.Hour)
	bar.Show(1, 1<<62, 1<<62)
	assert.LessOrEqual(t, len(drawn()), width)

	Clear(&out)
	assert.Equal(t, "\r"+strings.Repeat(" ", width)+"\r", out.String())
	assert.NotContains(t, out.String(), "\x1b")
}

func TestTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	assert.False(t, Terminal(w))
}
