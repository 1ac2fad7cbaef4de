// Package sluice decides, per key and in tens of nanoseconds, whether a call may
// pass now.
package sluice
