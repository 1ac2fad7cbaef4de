package sluice

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutcome_SaysWhatItDecided, each of them.
func TestOutcome_SaysWhatItDecided(t *testing.T) {
	for out, want := range map[outcome]struct{ decided, allowed bool }{
		denied: {true, false}, admitted: {true, true}, waved: {true, true}, refused: {true, false},
		blocked: {true, false}, unfit: {false, false}, retrying: {false, false},
	} {
		require.Equal(t, want.decided, out.decided(), "%d", out)
		require.Equal(t, want.allowed, out.allowed(), "%d", out)
	}
}

// TestDecision_AmendByHand: Soft is taken off what is told, and says when it is passed; Shadow
// turns a denial into an admission that says so.
func TestDecision_AmendByHand(t *testing.T) {
	for _, c := range []struct {
		name         string
		d            Decision
		soft         int
		shadow       bool
		cost         int
		want         Decision
		wantOverSoft bool
	}{
		{"just within", Decision{Allowed: true, Limit: 10, Remaining: 3}, 3, false, 1, Decision{Allowed: true, Limit: 7}, false},
		{"over", Decision{Allowed: true, Limit: 10, Remaining: 2}, 3, false, 1, Decision{Allowed: true, Limit: 7}, true},
		{"cost 0 is of one unit", Decision{Allowed: true, Limit: 10, Remaining: 3}, 3, false, 0, Decision{Allowed: true, Limit: 7}, true},
		{"denied", Decision{Limit: 10, Remaining: 1}, 3, false, 2, Decision{Limit: 7}, false},
		{"shadow", Decision{Limit: 10, Remaining: 1}, 0, true, 2, Decision{Allowed: true, WouldDeny: true, Limit: 10, Remaining: 1}, false},
		{"both", Decision{Limit: 10, Remaining: 1}, 3, true, 2, Decision{Allowed: true, WouldDeny: true, Limit: 7}, false},
		{"unlimited", Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}, 3, false, 1, Decision{Allowed: true, Limit: math.MaxInt, Remaining: math.MaxInt}, false},
		{"deny all", Decision{}, 3, false, 1, Decision{}, false},
	} {
		c.d.amend(c.soft, c.shadow, c.cost)
		c.want.OverSoft = c.wantOverSoft
		require.Equal(t, c.want, c.d, c.name)
	}
}
