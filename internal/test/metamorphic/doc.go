// Package metamorphic has the long tests of the library, through its public API alone: random
// traces of calls, beside the exact models of internal/test/oracle, and beside limiters that are told
// the same in other words.
package metamorphic
