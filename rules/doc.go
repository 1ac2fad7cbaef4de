// Package rules limits requests by rules written in YAML. It reads the rules of Envoy's rate limit
// service, field by field, and a few more. It does not depend on gRPC or HTTP: package httprules, below
// this one, puts rules in front of a net/http handler, and module rls turns them into that service.
//
//	set, err := rules.Load([]rules.File{{Name: "api.yaml", Data: data}}, rules.Options{})
//	engine, err := rules.New(set, rules.Config{})
//	err = engine.Decide(&request, &response)
//
// A request names a domain and holds descriptors. A descriptor is a list of entries, each a key and a
// value. It is looked up in the tree of its domain's rules, level by level; the rule at the depth of
// its last entry limits it. README.md explains how. REFERENCE.md lists every field, with the error for
// each mistake.
//
// # Counting
//
// A rule without an algorithm counts hits in windows of its unit, which begin at multiples of
// the unit since 1970. Denied hits count, too. The count belongs to the domain, the
// entries and the unit, not to the rule: it outlives a reload and holds for overrides. Each other
// rule has a limiter of package sluice. A reload keeps the limiter, with the units that its keys have
// spent, as long as only the limit changes.
//
// Counts are kept under a keyed 64-bit hash of domain and entries, each with its length. So a client
// that picks its values cannot find values that reach another client's counter.
package rules
