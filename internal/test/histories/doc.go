// Package histories holds a test and nothing else: it records what concurrent calls of a
// limiter return, and searches for an order in which calls that come one after the other
// return the same. The exact models of internal/test/oracle say what those return, and porcupine
// searches. It is a module of its own so that the library does not require porcupine.
package histories
