// Package grpclimit puts sluice limits in front of the methods of a gRPC server, and behind gRPC
// clients.
//
//	byPeer := sluice.Must(grpclimit.ByPeer(httplimit.IPConfig{}))
//	limit := sluice.Must(grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{
//		{Name: "per-client", Limiter: perClient, Key: byPeer},
//		{Name: "per-method", Limiter: perMethod, Key: sluice.Must(grpclimit.Join(byPeer, grpclimit.ByMethod()))},
//	}}))
//	server := grpc.NewServer(limit.ServerOptions()...) // unary calls and streams
//
// # What a denied client sees
//
// The status is RESOURCE_EXHAUSTED, with a google.rpc.QuotaFailure whose subjects are the names of
// the policies and a google.rpc.RetryInfo with the wait, and the trailer grpc-retry-pushback-ms
// (gRFC A6). The answer is trailers only, so that a client whose service config has a retryPolicy
// with RESOURCE_EXHAUSTED among its codes comes back by itself, after that wait and not before. Where
// no wait helps there is no RetryInfo, and the pushback is -1, which says not to come back.
// The details do not tell keys. Config.MaxRetryAfter bounds the wait that is told, and Config.RetryJitter keeps clients from
// coming back together; Decision.RetryAfter stays exact.
//
// # Waiting in place of being denied
//
// With a Config.Queue, a [httplimit.Queue], calls and messages over a limit wait for their turn, as many as it says and for as long. The
// trailer server-timing says for how long a call has waited.
//
// # What is promised
//
// A call passes if every policy admits it, and is charged to all of them or to none
// ([sluice.TakeAll]). The promises of a limiter hold for its calls too: N clients at once get
// exactly the number of calls that the limit says.
//
// A call that is denied costs no more than its judgement: the handler is not called. One for which
// a Key returns an error is answered with INVALID_ARGUMENT before any limiter is asked;
// Config.OnKeyError can let those without a key past the policy, but none whose key is malformed.
//
// An admitted call takes no allocation for up to 8 policies, if Key and Cost take none, and a
// message of a stream none; a stream one if some policy is per message.
//
// # Several processes
//
// Policy.Remote counts calls in place of a Limiter: a redislimit.Tier shares a limit between processes. Limiters judge first, all at one
// instant; then the Remotes are asked, one after another, with the call's context. If one of them denies, all that was charged before
// is given back. One that returns an error denies the call with UNAVAILABLE and a RetryInfo of a second.
//
// # Keys
//
// [ByPeer] counts a client by its address: the peer of the connection. Behind proxies that is a
// proxy, for all clients. Name them, and their metadata is believed, of them only:
//
//	grpclimit.ByPeer(httplimit.IPConfig{
//		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
//		Header:         "X-Forwarded-For",
//	})
//
// There is no switch that trusts everybody. A proxy that was not named is logged once.
// [ByTLSSubject] counts by certificates that the server has verified, [ByMethod] by the method,
// [ByMetadata] and [ByBearerToken] by the client's words, which limit nobody before it has been
// verified. [Join] combines keys.
//
// # What is exempt
//
// Health checks and reflection (grpc.health.v1, grpc.reflection.v1 and v1alpha) pass without being
// counted: a probe that is denied would take the server down, and debugging is rare. Config.Skip
// says otherwise.
//
// # Streams
//
// A policy counts calls, and so a stream once, when it is opened; with Policy.Per = [PerReceived]
// the messages that the client sends on it; with [PerSent] those that the server sends. Put one of
// the last two beside one that is PerCall: an open stream is no load, but its messages can be.
// A message that is denied ends its stream with RESOURCE_EXHAUSTED and a RetryInfo; as the
// handler has been at work by then, the pushback says not to send the call again by itself.
//
// # Costs and roll-out
//
// Policy.Cost returns the cost of a call or message, by its request. Config.Settle gives back costs that turned
// out not to count, by the code of the status: so a limit counts failed logins only. Policy.Settle does so for one policy, and
// the others stay charged. Policy.CountsDenialsOf has a policy ban those whom another one throttles. Policies whose
// limiter has sluice.Config.Shadow deny nobody, not for a key that is missing either;
// Decision.WouldDeny names those that would have, for Config.OnDecision to tell.
//
// # Clients
//
// [NewClient] returns interceptors that keep a program's own calls within a limit, by waiting or by
// failing fast; that leave a method alone for as long as its RetryInfo or pushback asks; and that
// send denied calls again, where the caller has said that this is safe. grpc-go's own retries
// obey the pushback without them.
//
// # Other frameworks
//
// A [Limiter] fits go-grpc-middleware's ratelimit interceptors. [Judge.Decide] fits
// connect-go and other frameworks: examples/grpc in the source has both. For proxies in front of a service,
// package rls is Envoy's rate limit service.
package grpclimit
