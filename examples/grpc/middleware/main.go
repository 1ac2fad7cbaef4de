// Command middleware is a server that asks sluice by the ratelimit interceptors of
// go-grpc-middleware.
package main

import (
	"log"
	"net"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
)

// newServer returns a server without services: five calls at once for each address, and one more a
// second.
func newServer(clock sluice.Clock) (*grpc.Server, error) {
	perClient, err := sluice.New(sluice.Config{Limit: sluice.PerSecond(1).WithBurst(5), Clock: clock})
	if err != nil {
		return nil, err
	}
	byPeer, err := grpclimit.ByPeer(httplimit.IPConfig{})
	if err != nil {
		return nil, err
	}
	var limiter ratelimit.Limiter
	limiter, err = grpclimit.NewLimiter(grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "per-client", Limiter: perClient, Key: byPeer}},
	})
	if err != nil {
		return nil, err
	}
	return grpc.NewServer(
		grpc.ChainUnaryInterceptor(ratelimit.UnaryServerInterceptor(limiter)),
		grpc.ChainStreamInterceptor(ratelimit.StreamServerInterceptor(limiter)),
	), nil
}

func main() {
	server, err := newServer(nil)
	if err != nil {
		log.Fatal(err)
	}
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	listener, err := net.Listen("tcp", "localhost:8080")
	if err != nil {
		log.Fatal(err)
	}
	log.Println("listening on", listener.Addr())
	log.Fatal(server.Serve(listener))
}
