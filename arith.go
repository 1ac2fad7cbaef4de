package sluice

import (
	"math"
	"math/bits"
	"time"
)

// mulDiv returns the quotient and remainder of a*b/d, saturating at
// math.MaxUint64 with remainder 0.
func mulDiv(a, b, d uint64) (quo, rem uint64) {
	hi, lo := bits.Mul64(a, b)
	if hi >= d {
		return math.MaxUint64, 0
	}
	return bits.Div64(hi, lo, d)
}

func saturatingAdd(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// pow2 returns the least power of two that is at least n.
func pow2(n int) int { return 1 << bits.Len(uint(n-1)) }

// until is the wait from now to the nanosecond at, which must not be earlier;
// math.MaxUint64 stands for never.
func until(at uint64, now int64) time.Duration {
	if at > math.MaxInt64 {
		return math.MaxInt64 // Never
	}
	return time.Duration(int64(at) - now)
}

// after returns the time d > 0 after now, math.MaxUint64 if the clock does not get there.
func after(now int64, d time.Duration) uint64 {
	if at := uint64(now) + uint64(d); at <= math.MaxInt64 {
		return at
	}
	return math.MaxUint64
}
