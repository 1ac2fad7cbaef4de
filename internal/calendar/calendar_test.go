package calendar

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLoad_WithoutADatabase: a zone that exists, on a machine that has none, and one that does not exist, on one that has all.
func TestLoad_WithoutADatabase(t *testing.T) {
	none := func(name string) (*time.Location, error) {
		if name == "UTC" {
			return time.UTC, nil
		}
		return nil, errors.New("unknown time zone " + name)
	}
	_, err := load("Asia/Seoul", none)
	require.EqualError(t, err, `the time zone "Asia/Seoul" cannot be loaded, since this machine has no time zone database: want import _ "time/tzdata" in the program, or the package tzdata installed`)
	_, err = load("UTC", none)
	require.NoError(t, err, "which needs no database")
	_, err = load("Asia/Soul", time.LoadLocation)
	require.EqualError(t, err, `there is no time zone "Asia/Soul"; want a name such as "Asia/Seoul", "America/New_York" or "UTC"`)
	_, err = load("../../etc/passwd", time.LoadLocation)
	require.ErrorContains(t, err, "there is no time zone")
}

// TestText_ParseIsItsInverse for all units.
func TestText_ParseIsItsInverse(t *testing.T) {
	for _, c := range kinds {
		c.Zone = "Asia/Seoul"
		c = c.Filled()
		words := []string{c.Unit.String(), "in", c.Zone}
		if s := c.Starts(); s != "" {
			words = append(words, "starting", s)
		}
		got, err := Parse(words)
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
}

// TestLongest is what no window is longer than, but for the clocks' changes.
func TestLongest(t *testing.T) {
	for _, c := range kinds {
		w, err := New(c)
		require.NoError(t, err)
		longest := uint64(0)
		for n := range min(w.Last(), 5000) {
			if n > 0 {
				longest = max(longest, w.Start(n+1)-w.Start(n))
			}
		}
		require.Equal(t, c.Longest(), time.Duration(longest), "%v", c)
	}
	require.Zero(t, Calendar{Unit: 99}.Longest())
}
