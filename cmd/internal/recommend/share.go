package recommend

import (
	"fmt"
	"strconv"
	"strings"
)

// A Share is a part of clients, in units of 1/whole, so that none is rounded.
type Share int64

const (
	percent Share = 1e6
	whole         = 100 * percent
)

// ParseShare reads a percentage of at most six decimals: "99.9%".
func ParseShare(s string) (Share, error) {
	digits, ok := strings.CutSuffix(strings.TrimSpace(s), "%")
	integer, decimals, dot := strings.Cut(digits, ".")
	bad := !ok || integer == "" || len(integer) > 3 || len(decimals) > 6 || dot && decimals == ""
	n, err := strconv.ParseUint(integer+(decimals + "000000")[:6], 10, 63)
	if bad || err != nil || Share(n) > whole {
		return 0, fmt.Errorf(`%q is no share: want a percentage from 0%% to 100%%, as in "99.9%%"`, s)
	}
	return Share(n), nil
}

// String returns the form that ParseShare reads.
func (s Share) String() string {
	text := fmt.Sprintf("%d.%06d", s/percent, s%percent)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + "%"
}

// Rest is the share of all other clients.
func (s Share) Rest() Share { return whole - s }

// Of returns the share of n clients, rounded down. n is at most 1<<36.
func (s Share) Of(n int) int {
	return int(int64(s/percent)*int64(n)/100 + (int64(s/percent)*int64(n)%100*int64(percent)+int64(s%percent)*int64(n))/int64(whole))
}
