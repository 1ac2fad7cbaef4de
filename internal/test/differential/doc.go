// Package differential compares rules and rls with the service that they take the place of,
// envoyproxy/ratelimit: which files load, and each field of the answers to random calls under random
// rules. DIFFERENCES.md lists where the two differ, and why; the tests hold it to that.
//
// It has tests, and the program cost, which measures the cost of calls to both services; and is a module of
// its own outside of go.work, so that nobody else downloads the other service. The tests are for 64
// bits: elsewhere limits above 2^31 are refused by rules.
package differential
