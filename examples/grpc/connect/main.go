// Command connect is a server of connect-go behind sluice limits: it serves the protocols of
// Connect, gRPC and gRPC-Web on one port. Try it:
//
//	go run ./connect
//	curl -i -d '"ann"' -H 'Content-Type: application/json' localhost:8080/greet.v1.Greeter/Greet
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/httplimit"
)

const greet = "/greet.v1.Greeter/Greet"

// newHandler returns the service: five greetings at once for each address, and one more a second.
// One without a name costs nothing.
func newHandler(clock sluice.Clock) (http.Handler, error) {
	perClient, err := sluice.New(sluice.Config{Limit: sluice.PerSecond(1).WithBurst(5), Clock: clock})
	if err != nil {
		return nil, err
	}
	byPeer, err := grpclimit.ByPeer(httplimit.IPConfig{}) // behind a proxy: name it here
	if err != nil {
		return nil, err
	}
	judge, err := grpclimit.New(grpclimit.Config{
		Policies: []grpclimit.Policy{{Name: "per-client", Limiter: perClient, Key: byPeer}},
		Settle:   freeIfInvalid,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(greet, connect.NewUnaryHandler(greet, greeting, connect.WithInterceptors(limits{judge})))
	return mux, nil
}

func greeting(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
	if req.Msg.GetValue() == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("want a name"))
	}
	return connect.NewResponse(wrapperspb.String("Hello, " + req.Msg.GetValue() + "!")), nil
}

func main() {
	handler, err := newHandler(nil)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: handler, Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	log.Println("listening on", server.Addr)
	log.Fatal(server.ListenAndServe())
}
