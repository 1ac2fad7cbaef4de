package redisconn

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/redislimit"
)

func TestConfig_Servers(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{URLs: []string{"redis://ann:secret@cache"}}, "single cache:6379"},
		{Config{URLs: []string{"localhost:6380"}}, "single localhost:6380"},
		{Config{URLs: []string{"/run/redis.sock"}, Unix: true}, "single /run/redis.sock"},
		{Config{URLs: []string{"unix:///run/redis.sock"}}, "single /run/redis.sock"},
		{Config{URLs: []string{"a:1", "b:2"}}, "cluster a:1,b:2"},
		{Config{URLs: []string{"redis://a:1?addr=b:2"}}, "cluster a:1,b:2"},
		{Config{URLs: []string{"a:1"}, Type: "CLUSTER"}, "cluster a:1"},
		{Config{URLs: []string{"mymaster", "a:1", "b:2"}, Type: "SENTINEL"}, "sentinel a:1,b:2 of mymaster"},
		{Config{URLs: []string{"redis://a:1?master_name=m&addr=b:2"}}, "sentinel a:1,b:2 of m"},
		{Config{URLs: []string{"redis://[::1]:7000"}}, "single [::1]:7000"},
	} {
		require.Equal(t, c.want, c.config.Servers(), "%+v", c.config)
		client, err := c.config.Client()
		require.NoError(t, err, "%+v", c.config)
		require.NoError(t, client.Close())
	}
}

// TestConfig_Errors: each names what is wrong and what would be right, and none has a password in it.
func TestConfig_Errors(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "there is no address; want one such as redis://localhost:6379"},
		{Config{URLs: []string{"redis://u:hidden@h:x"}}, "address 1: it is no URL"},
		{Config{URLs: []string{"http://u:hidden@h"}}, "address 1: its scheme is another one; want redis://"},
		{Config{URLs: []string{"redis://u:hidden@"}}, "address 1: it has no host"},
		{Config{URLs: []string{"hidden"}}, "address 1: it is no HOST:PORT"},
		{Config{URLs: []string{"redis://h/x"}}, "no number of a database"},
		{Config{URLs: []string{"redis://h?pool_size=1"}}, "a parameter that is neither"},
		{Config{URLs: []string{"default:hidden@redis:6379"}}, "it has an @ and no scheme"},
		{Config{URLs: []string{"redis://default:/hidden@h:6379"}}, "where none is expected"},
		{Config{URLs: []string{"redis://default:9/hidden@h:6379"}}, "where none is expected"},
		{Config{URLs: []string{"redis://u:12?hidden@h:6379"}}, "neither master_name nor addr"},
		{Config{URLs: []string{"redis://u:12#hidden@h"}}, "where none is expected"},
		{Config{URLs: []string{"redis://h:1/3", "h:2"}}, "a database of a cluster"},
		{Config{URLs: []string{"redis://h:1?master_name=m"}, Type: "cluster"}, "a master_name of a cluster"},
		{Config{URLs: []string{"redis://h:1/x?master_name=m"}}, "no number of a database"},
		{Config{URLs: []string{"h:1"}, Type: "memcache"}, `the type "memcache"; want single, cluster or sentinel`},
		{Config{URLs: []string{"h:1", "h:2"}, Type: "single"}, "2 addresses of a single server"},
		{Config{URLs: []string{"redis://h:1"}, Type: "sentinel"}, "without the name of a master"},
		{Config{URLs: []string{"m"}, Type: "sentinel"}, "without the name of a master"},
		{Config{URLs: []string{"unix:///a", "unix:///b"}}, "a unix socket of a cluster"},
		{Config{URLs: []string{"redis://h"}, CA: "x"}, "without TLS"},
		{Config{URLs: []string{"rediss://h"}, CA: "/nowhere"}, "/nowhere"},
		{Config{URLs: []string{"rediss://h"}, Cert: "x"}, "want both or none"},
	} {
		_, err := c.config.Client()
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "hidden")
	}
}

func TestConfig_Auth(t *testing.T) {
	options := func(c Config) *redis.Options {
		client, err := c.Client()
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		return client.(*redislimit.Client).Unwrap().Options()
	}
	o := options(Config{URLs: []string{"redis://ann:p%40ss@h/3"}})
	require.Equal(t, []any{"ann", "p@ss", 3}, []any{o.Username, o.Password, o.DB})
	o = options(Config{URLs: []string{"redis://ann:old@h"}, Auth: "new"})
	require.Equal(t, []any{"", "new"}, []any{o.Username, o.Password})
	o = options(Config{URLs: []string{"h:1"}, Auth: "bob:secret:with:colons"})
	require.Equal(t, []any{"bob", "secret:with:colons"}, []any{o.Username, o.Password})
}

// TestConfig_NoRetries: no client sends a command again whose answer is lost: it may have counted.
func TestConfig_NoRetries(t *testing.T) {
	for _, c := range []Config{{URLs: []string{"h:1"}}, {URLs: []string{"redis://h:1?master_name=m"}}, {URLs: []string{"h:1", "h:2"}}} {
		client, err := c.Client()
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		retries := 1
		switch client := client.(type) {
		case *redislimit.Client:
			retries = client.Unwrap().Options().MaxRetries
		case *redis.Client:
			retries = client.Options().MaxRetries
		case *redis.ClusterClient:
			retries = client.Options().MaxRetries
		}
		require.LessOrEqual(t, retries, 0, "%v", c.URLs)
	}
}
