// Package room has what queues in front of limiters need of the engine, and users do not: they have Wait, which charges. The
// engine sets the functions. A key is a sluice.Key, which this package cannot name: the engine imports it.
package room

import "context"

var (
	// Await returns when a call of cost units for the key would be admitted, and charges nothing; at once, if no wait helps. It goes
	// by the limiter's clock, and under InFlight looks again when units come back. The error is the context's.
	Await func(ctx context.Context, key any, cost int) error

	// Deny counts a call for the key as one that the limiter has denied, as its statistics and TopDenied do.
	Deny func(key any, cost int)
)
