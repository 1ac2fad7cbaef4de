// Package expositions tests that Prometheus gets the same from promsluice and from otelsluice, through
// OpenTelemetry's own exporter. It is a module of its own, so that neither of the two requires the other's library.
package expositions
