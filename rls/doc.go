// Package rls is Envoy's rate limit service, envoy.service.ratelimit.v3, on the rules and the engine
// of package rules. Nothing runs beside it: counts are in memory.
//
//	service := rls.New(engine, rls.Options{})
//	server := service.NewServer()
//
// It answers as envoyproxy/ratelimit does: statuses, headers, dynamic metadata, JSON over HTTP,
// health. Where that one would end, as on a limit without a unit, it refuses the call.
package rls
