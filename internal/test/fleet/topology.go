package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/test/servers"
)

// A Store is servers of Redis or Valkey, in one of the ways they are run. Services reach a single one by a proxy each.
type Store struct {
	Kind    string // single, sentinel or cluster
	Servers []*servers.Redis
	Proxies []*Proxy
	URLs    []string // of service i, modulo their number
	Version string

	ends []func()
}

// The ways.
const (
	Single   = "single"
	Sentinel = "sentinel"
	Cluster  = "cluster"
)

// Open starts a store for n services. The caller closes it.
func Open(binary, kind string, n int, options ...string) (*Store, error) {
	s := &Store{Kind: kind}
	var err error
	switch kind {
	case Single:
		err = s.single(binary, n, options)
	case Sentinel:
		err = s.sentinel(binary, options)
	case Cluster:
		err = s.cluster(binary, options)
	default:
		err = fmt.Errorf("the store %q: want single, sentinel or cluster", kind)
	}
	if err == nil {
		s.Version, err = version(s.Servers[0].Addr)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Replicas returns the servers that began as replicas.
func (s *Store) Replicas() []*servers.Redis {
	switch s.Kind {
	case Sentinel:
		return s.Servers[1:]
	case Cluster:
		return s.Servers[3:]
	}
	return nil
}

// Close ends all of it.
func (s *Store) Close() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
}

// start starts a server that ends with the store.
func (s *Store) start(binary string, options ...string) (*servers.Redis, error) {
	server, err := servers.NewRedis(binary, options...)
	if err != nil {
		return nil, err
	}
	s.Servers = append(s.Servers, server)
	s.ends = append(s.ends, func() {
		_ = server.Continue()
		server.Kill()
	})
	return server, nil
}

func (s *Store) single(binary string, n int, options []string) error {
	server, err := s.start(binary, options...)
	if err != nil {
		return err
	}
	for range n {
		p, err := NewProxy(server.Addr)
		if err != nil {
			return err
		}
		s.ends = append(s.ends, p.Close)
		s.Proxies = append(s.Proxies, p)
		s.URLs = append(s.URLs, "redis://"+p.Addr())
	}
	return nil
}

// sentinel starts a primary, a replica and three Sentinels.
func (s *Store) sentinel(binary string, options []string) error {
	primary, err := s.start(binary, options...)
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(primary.Addr)
	if _, err = s.start(binary, append(options, "--replicaof", host, port)...); err != nil {
		return err
	}
	urls := "redis://"
	for i := range 3 {
		addr, err := s.watch(binary, host, port)
		if err != nil {
			return err
		}
		switch i {
		case 0:
			urls += addr + "?master_name=fleet"
		default:
			urls += "&addr=" + addr
		}
	}
	s.URLs = []string{urls}
	return eventually("the Sentinels know the replica and each other", func() bool {
		c := redis.NewSentinelClient(&redis.Options{Addr: strings.TrimPrefix(strings.SplitN(urls, "?", 2)[0], "redis://")})
		defer c.Close()
		m, err := c.Master(context.Background(), "fleet").Result()
		return err == nil && m["num-slaves"] == "1" && m["num-other-sentinels"] == "2"
	})
}

// watch starts a Sentinel, and returns its address.
func (s *Store) watch(binary, host, port string) (string, error) {
	dir, err := os.MkdirTemp("", "sluice-sentinel-")
	if err != nil {
		return "", err
	}
	s.ends = append(s.ends, func() { _ = os.RemoveAll(dir) })
	free, err := servers.FreePort()
	if err != nil {
		return "", err
	}
	own := strconv.Itoa(free)
	addr := net.JoinHostPort("127.0.0.1", own)
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor fleet %s %s 2\nsentinel down-after-milliseconds fleet 1000\nsentinel failover-timeout fleet 4000\n", own, dir, host, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command(binary, file, "--sentinel")
	if err := cmd.Start(); err != nil {
		return "", err
	}
	s.ends = append(s.ends, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return addr, eventually("the Sentinel answers", func() bool {
		c := redis.NewClient(&redis.Options{Addr: addr})
		defer c.Close()
		return c.Ping(context.Background()).Err() == nil
	})
}

// cluster starts three primaries with a replica each.
func (s *Store) cluster(binary string, options []string) error {
	ctx := context.Background()
	options = append(options, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0")
	var clients []*redis.Client
	var urls []string
	for i := range 6 {
		server, err := s.start(binary, options...)
		if err != nil {
			return err
		}
		c := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer c.Close()
		clients = append(clients, c)
		host, port, _ := net.SplitHostPort(server.Addr)
		if err := clients[0].ClusterMeet(ctx, host, port).Err(); err != nil && i > 0 {
			return err
		}
		urls = append(urls, "redis://"+server.Addr)
		if i < 3 {
			if err := c.ClusterAddSlots(ctx, slots(i*16384/3, (i+1)*16384/3)...).Err(); err != nil { // Redis 6.2 knows no ranges
				return err
			}
		}
	}
	for i, c := range clients[3:] {
		primary := clients[i].Do(ctx, "CLUSTER", "MYID").Val()
		if err := eventually("a node knows its primary", func() bool { return c.ClusterReplicate(ctx, fmt.Sprint(primary)).Err() == nil }); err != nil {
			return err
		}
	}
	s.URLs = []string{strings.Join(urls[:3], ",")}
	return eventually("the cluster is one", func() bool {
		for _, c := range clients {
			info := c.ClusterInfo(ctx).Val()
			links := strings.Count(c.ClusterNodes(ctx).Val(), "slave")
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:6") || links != 3 {
				return false
			}
		}
		for _, c := range clients[:3] {
			if !strings.Contains(c.Info(ctx, "replication").Val(), "state=online") {
				return false
			}
		}
		return true
	})
}

// slots returns those from begin on and before end.
func slots(begin, end int) (out []int) {
	for i := begin; i < end; i++ {
		out = append(out, i)
	}
	return out
}

// Do sends a command to a server.
func Do(addr string, command ...any) error {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer c.Close()
	return c.Do(context.Background(), command...).Err()
}

func version(addr string) (string, error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	info, err := c.Info(context.Background(), "server").Result()
	if err != nil {
		return "", err
	}
	for _, kind := range []string{"valkey", "redis"} {
		if _, rest, ok := strings.Cut(info, kind+"_version:"); ok {
			number, _, _ := strings.Cut(rest, "\r\n")
			return kind + " " + number, nil
		}
	}
	return "", errors.New("a server that does not say its version")
}

// eventually waits until something holds.
func eventually(what string, holds func() bool) error {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("it never holds: %s", what)
		}
	}
	return nil
}
