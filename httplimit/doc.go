// Package httplimit puts sluice limits in front of net/http handlers, and behind net/http
// clients.
//
//	byIP := sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{}))
//	limit, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{
//		{Name: "per-client", Limiter: perClient, Key: byIP},
//		{Name: "per-user", Limiter: perUser, Key: httplimit.ByBasicAuthUser()},
//	}, OnKeyError: httplimit.KeyErrorSkip}) // who names no user goes by the address alone
//	http.ListenAndServe(addr, limit.Handler(mux))
//
// Judge.Handler is a middleware of the usual shape, func(http.Handler) http.Handler, so it fits
// net/http and chi as it is. For echo there are echolimit (v5) and echov4limit, for gin
// ginlimit, and for fiber (v3) fiberlimit, modules of their own: their handlers say how a
// request ended in ways that a middleware of net/http does not see. They are made of [Judge],
// which fits other frameworks, too. Do not put it behind fiber's adaptor, which
// shows a middleware the last of several fields of one name and a handler the first, so that
// clients choose their own key; and which tells Config.Settle 200 for every
// response.
//
// # What is promised
//
// A request passes if every policy admits it, and is charged to all of them or to
// none ([sluice.TakeAll]). The promises of a limiter hold for its requests too: N
// clients at once get exactly the number of responses that the limit says.
//
// A denied request costs no more than its judgement: the handler is not called. It is
// answered with 429 and a problem document (RFC 9457) that names the violated
// policies, or by Config.OnDenied.
//
// A request for which a Key returns an error is answered with 400 before any limiter is
// asked. Config.OnKeyError can let those without a key past the policy, but none whose
// key is malformed or too long.
//
// With all headers and Config.Explain off, an admitted request takes no allocation for up
// to 8 policies, if Key and Cost take none.
//
// Whoever is denied has a name: in Decision.Charges, for the hooks, and in
// sluice.Limiter.TopDenied, for limiters with sluice.Config.TopDenied.
//
// # Keys and tiers
//
// [ByRemoteIP] counts a client by its address: the address of the socket, or behind proxies, which
// have to be named, the one that they have seen. There is no switch that trusts everybody.
// A proxy that was not named, which makes one client of all of its clients, is logged once. So is a named proxy
// that sends no header, and a middleware that is around itself: IPConfig.OnUntrustedProxy,
// IPConfig.OnMissingHeader and Config.OnCountedTwice.
// All texts of one address are one key, IPv6 is cut to the network that one host can use
// all of, and no two IPv4 clients share a key. [IPTiers] adds wider networks with larger
// budgets, so that owning many IPv6 networks buys little.
//
// [ByHeader], [ByCookie], [ByBasicAuthUser], [ByBearerToken] and [ByPattern] count by the words of
// the request, and [Join] combines keys. Policy.Limit has a request go by a limit that
// it brings, in its token, say.
// A request takes bounded time to read, whatever a stranger sends; ATTACKS.md in the source of
// this package lists the attacks that were tried.
//
// # Headers
//
// Denials carry Retry-After (RFC 9110, section 10.2.3). Everything else is off until
// Headers says so: RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-11, and the older X-RateLimit fields. They tell
// strangers how much the service takes, and how much is left, which may be more than they
// should know.
//
// Headers.MaxRetryAfter bounds what Retry-After tells, and Headers.RetryJitter keeps clients from coming back together. All else stays exact.
//
// The values are the decision's, before Config.Settle. Where it does not say them all
// they are read right after it, and charges of other requests to the key in between show. In the words of the draft, with R the
// limit's rate per period P, and B its burst:
//
//	                     q  w              r                t
//	GCRA and buckets     B  B*P/R          available now    to the next unit, or r*P/R
//	  refill: interval   B  B*P/min(R, B)  available now    to the next refill, or r*P/min(R, B)
//	FixedWindow          R  P              left in window   to the window's end
//	  by a calendar      R  left out       left in window   to the window's end
//	SlidingWindow, -Log  R  P              available now    until the oldest unit leaves, or P
//	a Remote             B  left out       as it has said   its RetryAfter, or left out
//
// Of the two times of buckets t is the longer one. It is P where no unit counts, and left out
// where a Remote has not denied. All times are rounded up to whole seconds, and all numbers are at most
// 999,999,999,999,999 (15 digits, RFC 9651). Under sluice.DenyAll w and t are left
// out. A policy that is in shadow mode, or whose limit is sluice.Unlimited, limits nobody and
// is in no header; nor is a Remote that has not been asked, in the answer to a denial. Units of sluice.Config.Soft are not shown, but where
// they are used up t ends with the first of them that comes back. Times until something
// comes back are in real time, so under a sluice.CoarseClock somewhat longer. Limits that
// SetLimit and Key.SetLimit change are told from then on. Of a blocked key, r is 0, and t and
// Retry-After last until the block ends.
//
// # Failed logins, and bans
//
// With Config.Settle a limit counts failed logins only. Policy.Settle does so for one policy: a login that succeeds is given back
// to the policy of failed logins, and stays charged to the policy of addresses. Policy.CountsDenialsOf has a policy ban
// those whom another one throttles: it counts that one's denials, and denies all once there are too many.
//
// # Requests that run at once
//
// A Policy with a Limiter of [sluice.InFlight] limits requests that run at once: sluice.PerSecond(10) is ten, and so is any other
// Period. A request counts until its handler has returned or panicked, or a hook has panicked. One whose handler has taken
// the connection over (http.Hijacker) counts until that is closed, or nobody has it any more: who closes the connection below it (NetConn) gives its
// units back with the garbage. In adapters one whose response streams on counts until the stream has ended. The connection keeps the
// methods of a *net.TCPConn, *net.UnixConn or *tls.Conn, but is of another type.
//
// While it runs, its units are renewed three times in a Period, however long it runs. They are looked at no more than
// once in 10 ms, so take a Period of 30 ms or more; with a shorter one they can lapse for a moment, and be given to
// other requests. The Period of a limit only says how soon the units of a process that hangs are free, and the units of a
// key that has been Reset, or whose limit's Period SetLimit has changed, are counted again within a third of it, or a second.
//
// A denial has a Retry-After of at most one second, since nobody knows when a request ends. The quota unit is "concurrent-requests".
//
// http.TimeoutHandler answers while its handler goes on. Inside the middleware it frees the unit with the answer: ten at once
// become as many as there are handlers that do not heed their context. Put it around the middleware, or have handlers
// return when their context ends. So with the timeouts of frameworks that go on by themselves.
//
// # Waiting in place of being denied
//
// With a [Queue] requests over a limit wait for their turn, as many as it says and for as long, as with nginx's burst and .NET's
// QueueLimit. A limit whose burst is 1, as sluice.PerSecond(10).WithBurst(1), then has requests pass one by one:
//
//	queue := sluice.Must(httplimit.NewQueue(httplimit.QueueConfig{MaxWaiting: 1000, MaxPerKey: 20, MaxWait: 5 * time.Second}))
//	limit := sluice.Must(httplimit.New(httplimit.Config{Policies: policies, Queue: queue}))
//
// # Limits that processes share
//
// A Policy with a Remote in place of a Limiter counts elsewhere, as with redislimit in Redis.
// Limiters judge first, all at one instant; then the Remotes are asked, one after
// another, each with the context of the request. Put a Limiter in front of a Remote: a request that it
// denies is no load there. If a Remote denies, all that was charged before is given back, as
// far as it has not come back by itself; while other Remotes are asked, other requests see it
// charged, and can be denied for it.
//
// A Remote can fail. Its error is neither a denial nor an admission: the request is answered
// with 503, Retry-After: 1 and, without Config.OnDenied, a problem document; Decision.RemoteError
// is the error. redislimit.Tier decides by itself how to go on without Redis, and returns none.
// Calls after the decision, to give back or by Config.Settle, are bounded by a second
// in all, whether the client is still there or not. If they fail, the charges stay
// charged.
//
// # Roll-out
//
// Policies whose limiter has sluice.Config.Shadow, or that have Policy.Shadow with a Remote,
// deny nobody, for want of a key either; Decision.WouldDeny names those that would have. They are
// asked once all other policies have admitted.
//
// # Coming from another middleware
//
//	github.com/go-chi/httprate
//	  Limit(n, d)                      sluice.SlidingWindow, sluice.Per(n, d)
//	  LimitAll, Key("*")               a Key that returns "" for all
//	  KeyByIP                          ByRemoteIP(IPConfig{})
//	  KeyByRealIP                      ByRemoteIP, with the proxies that are to be believed
//	  KeyByEndpoint                    ByPattern; or r.URL.Path, with care: see below
//	  JoinKeys                         Join
//	  WithIncrement                    Policy.Cost
//	  WithRequestLimit                 Policy.Limit
//	  WithLimitHandler                 Config.OnDenied
//	  WithErrorHandler                 Config.OnDenied; Decision.KeyError
//	  RespondOnLimit(w, r, key)        Judge.Decide, and Verdict.Answer
//	  headers                          Headers.XLimit, XRemaining; XReset: ResetUnix
//	github.com/throttled/throttled
//	  VaryBy                           ByRemoteIP, ByHeader, ByCookie, or a Key of your own; Join
//	  DeniedHandler, Error             Config.OnDenied; Decision.RemoteError
//	  headers                          Headers.XLimit, XRemaining; XReset: ResetDelta
//	github.com/ulule/limiter
//	  WithTrustForwardHeader           ByRemoteIP, with the proxies that are to be believed
//	  WithIPv4Mask, WithIPv6Mask       IPConfig.IPv4Bits, IPv6Bits
//	  WithExcludedKey                  Config.Skip; or sluice.Unlimited by Key.SetLimit
//
// A Key that returns r.URL.Path has a budget for each spelling of a path that a router takes for the same: //x and
// /x/ beside /x behind chi's CleanPath and StripSlashes, or /X and /%78. Clients choose the spelling, and so the budget.
// [ByPattern] has one for all that a route serves: http.ServeMux and chi set the pattern, echo does, and the adapters for
// echo v4, gin and fiber. Under chi put the middleware on the route (With, Group), since the pattern is known there.
//
// These differ: responses have no headers but Retry-After on denials until Headers says so; a
// failing Key is answered with 400, and a failing Remote with 503; IPv6 is cut to a /64, as by
// httprate only; Retry-After is the wait that is needed, and not there where none helps.
//
// # Clients
//
// [NewTransport] returns an http.RoundTripper that keeps a program's own requests within a
// limit for each host, by waiting or by failing fast; that leaves a host alone for as long
// as its Retry-After or RateLimit asks; and that sends denied requests again, where that
// is safe. With a limiter of [sluice.InFlight] it keeps so many requests to a host open at once.
package httplimit
