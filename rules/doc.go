// Package rules limits requests by rules that are written in YAML: those of Envoy's rate limit
// service, field by field, and a few more. It knows nothing of gRPC and HTTP: package httprules, below
// this one, puts rules in front of a net/http handler, and module rls makes them that service.
//
//	set, err := rules.Load([]rules.File{{Name: "api.yaml", Data: data}}, rules.Options{})
//	engine, err := rules.New(set, rules.Config{})
//	err = engine.Decide(&request, &response)
//
// A request names a domain and holds descriptors, each a list of entries, key and value. A
// descriptor is looked up in the tree of its domain's rules, level by level; the rule that lies
// at the depth of its last entry limits it. README.md says how, REFERENCE.md lists every field
// with the error that a mistake gives.
//
// # Counting
//
// A rule without an algorithm counts hits in windows of its unit, which begin at multiples of
// the unit since 1970; hits that are denied count, too. The count belongs to the domain, the
// entries and the unit, not to the rule: it outlives a reload and holds for overrides. Other
// rules have a limiter of package sluice each, which a reload keeps, with what its keys have
// spent, as long as only the limit changes.
//
// Counts are kept under a keyed 64-bit hash of domain and entries, each with its length: a
// client that picks its values cannot find one that reaches another client's counter.
package rules
