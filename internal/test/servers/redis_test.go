package servers

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRedis(t *testing.T) {
	s := StartRedis(t, "--requirepass", "secret")
	other := &Redis{Addr: s.Addr, Binary: s.Binary}
	require.ErrorIs(t, other.Restart(), errEnded, "its port is taken")
	s.Kill()
	_, err := net.Dial("tcp", s.Addr)
	require.Error(t, err)
	require.NoError(t, s.Restart())
	c, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	c.Close()
}

func TestFindRedis_None(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := FindRedis()
	require.Equal(t, ErrNoRedis, err)
	t.Setenv("SLUICE_REDIS_SERVERS", "a:b")
	require.Equal(t, []string{"a", "b"}, AllRedis())
}
