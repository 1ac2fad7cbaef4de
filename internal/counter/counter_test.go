package counter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnused_IsWhatTheKernelSays(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, unused(filepath.Join(dir, "missing")), "a system that does not say")
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"\n", ""},
		{clocksource + "\n", ""},
		{"kvm-clock\n", "the kernel's clock source is kvm-clock and not " + clocksource},
		{"hpet", "the kernel's clock source is hpet and not " + clocksource},
	} {
		path := filepath.Join(dir, "current_clocksource")
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		require.Equal(t, c.want, unused(path), "%q", c.text)
	}
}

func TestRead_TheCounterMoves(t *testing.T) {
	if Name == "" {
		require.Zero(t, Read())
		require.Zero(t, ReadInOrder())
		require.Equal(t, "this build does not read the processor's counter", Unfit())
		return
	}
	for _, read := range []func() uint64{Read, ReadInOrder} {
		first, moved := read(), false
		for range 1_000_000 {
			moved = moved || read() != first
		}
		require.True(t, moved)
	}
	require.False(t, strings.HasSuffix(Unfit(), "."), "half a sentence")
}
