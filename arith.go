package sluice

import (
	"math"
	"math/bits"
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
