package progress

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestFit(t *testing.T) {
	for _, c := range []struct {
		page          string
		columns, rows int
		want          string
	}{
		{"ab\nc\n", 80, 3, "\x1b[Hab\x1b[K\nc\x1b[K\n\x1b[J"},
		{"ab\nc\n", 1, 3, "\x1b[Ha\x1b[K\nc\x1b[K\n\x1b[J"},
		{"▁█▇\n\nc\n", 2, 4, "\x1b[H▁█\x1b[K\n\x1b[K\nc\x1b[K\n\x1b[J"},
		{"a\nb\nc\n", 80, 3, "\x1b[Ha\x1b[K\nb\x1b[K\n1 lines more: in a taller window, or at the end\x1b[J"},
		{"a\nb\nc\nd\n", 8, 2, "\x1b[Ha\x1b[K\n3 lines\x1b[J"},
	} {
		assert.Equal(t, c.want, string(fit([]byte(c.page), c.columns, c.rows)), "%q", c.page)
	}
}

func TestScreen(t *testing.T) {
	var out strings.Builder
	now := time.Unix(1000, 0)
	s := &Screen{out: &out, now: func() time.Time { return now }, size: func() (int, int, error) { return 0, 0, errors.New("no terminal") }}
	assert.True(t, s.Due(false))
	s.Show([]byte(strings.Repeat(strings.Repeat("x", 90)+"\n", 30)))
	assert.Equal(t, 23*80, strings.Count(out.String(), "x"))
	assert.Contains(t, out.String(), "7 lines more")
	assert.True(t, strings.HasPrefix(out.String(), strings.Repeat("\n", 23)+"\x1b[H"))
	now = now.Add(screenInterval - 1)
	assert.False(t, s.Due(false))
	assert.True(t, s.Due(true))
	now = now.Add(1)
	assert.True(t, s.Due(false))
	out.Reset()
	s.Clear()
	assert.Equal(t, "\x1b[H\x1b[J", out.String())
}
