// Package limittest is for tests of limited programs: by this library, by another one, or by a
// server that is asked.
//
//   - [CheckClock] says whether a clock is right where a test runs, inside a testing/synctest
//     bubble or outside.
//   - A [Checker] is told the units that a limiter admitted, and says whether it ever admitted more than it
//     promises, and in which span of time. A [Recorder] does so for concurrent calls.
//   - A [Model] is an algorithm as it is defined, exact and slow, to compare a limiter with.
//   - [Traffic] makes arrivals in the patterns that limiters meet, from a seed.
//   - An [API] is a limited server, for tests of clients.
//
// Times are Unix nanoseconds, as a sluice.Clock tells them. The package imports the standard
// library and package sluice only.
//
// # Clocks in testing/synctest
//
// Inside a bubble every clock of package sluice is right, if it is made there: the time is that of
// the bubble, which stands still until all its goroutines wait. A FastClock is the system clock
// in tests, as its Source says, but for tests that run benchmarks (see sluice.FastClock); a CoarseClock refreshes
// on the bubble's timers. A ManualClock ignores the bubble, and moves when it is told to.
//
// A limiter whose clock crosses the edge of a bubble is wrong. Make both in the
// bubble, and do not use them outside:
//
//	made outside, as at package level, and used inside
//	  SystemClock,  go back to the bubble's time, the year 2000: new keys are limited by that, and
//	  FastClock     keys that have been charged outside stay as they were
//	  CoarseClock   goes on in real time; or, if it was parked, follows the bubble, and stands
//	                still for ever after it
//	made inside, used outside
//	  CoarseClock   stands still; SystemClock and FastClock are right
//
// No CoarseClock looks for the edge when it is read: that would cost every decision something. CheckClock
// does, and costs a test 10 ms outside of a bubble and nothing inside.
package limittest
