package redistest

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServer(t *testing.T) {
	s := Start(t, "--requirepass", "secret")
	other := &Server{Addr: s.Addr, Binary: s.Binary}
	require.ErrorIs(t, other.Restart(), errEnded, "its port is taken")
	s.Kill()
	_, err := net.Dial("tcp", s.Addr)
	require.Error(t, err)
	require.NoError(t, s.Restart())
	c, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	c.Close()
}

func TestFind_None(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := Find()
	require.Equal(t, ErrNone, err)
	t.Setenv("SLUICE_REDIS_SERVERS", "a:b")
	require.Equal(t, []string{"a", "b"}, All())
}
