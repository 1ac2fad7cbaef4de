package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestFleet is a short run of the whole.
func TestFleet(t *testing.T) {
	if _, err := servers.FindRedis(); err != nil {
		t.Skip(err)
	}
	var out bytes.Buffer
	err := run(t.Context(), &out, shortest, false)
	t.Log(out.String())
	require.NoError(t, err)
	for _, want := range []string{
		"replica 2 is killed\n", "replica 2 is started\n", "the store is killed\n", "the store is started, empty\n",
		down, localShare, "The limit held",
	} {
		assert.Contains(t, out.String(), want)
	}
	assert.NotContains(t, out.String(), "\x1b", "colours")
}

func TestRun_NoServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	assert.ErrorIs(t, run(t.Context(), &bytes.Buffer{}, shortest, false), servers.ErrNoRedis)
	assert.ErrorContains(t, run(t.Context(), &bytes.Buffer{}, shortest-1, false), "-seconds 5: want at least 6")
}

// TestRun_Interrupted: a run that is ended while it builds or starts says so.
func TestRun_Interrupted(t *testing.T) {
	if _, err := servers.FindRedis(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, run(ctx, &bytes.Buffer{}, shortest, false), context.Canceled)
}

// second is a row of three equal replicas, and denials.
func second(sure, across int, outage bool) (row, counts) {
	r, c := row{modes: [replicas]string{shared, shared, shared}}, counts{denied: 9}
	for i := range replicas {
		r.degraded[i] = outage
		c.sure[i], c.across[i] = sure, across
	}
	return r, c
}

func TestVerdict(t *testing.T) {
	type s struct {
		sure, across int
		outage       bool
	}
	for _, c := range []struct {
		name    string
		seconds []s
		want    string // of the verdict; empty if it holds
	}{
		{"exact", []s{{100, 0, false}, {100, 0, false}}, ""},
		{"one too many", []s{{100, 0, false}, {101, 0, false}}, "3 more than the limit were admitted with the store"},
		{"across, with room before", []s{{90, 10, false}, {100, 0, false}}, ""},
		{"across, with room after", []s{{100, 10, false}, {90, 0, false}}, ""},
		{"across, with no room", []s{{95, 10, false}, {96, 0, false}}, "3 more than the limit were admitted with the store"},
		{"an outage", []s{{100, 0, false}, {150, 0, true}, {150, 0, true}, {100, 0, false}}, ""},
		{"two outages", []s{{200, 0, true}, {100, 0, false}, {200, 0, true}}, ""},
		{"more in an outage", []s{{150, 0, true}, {151, 0, true}}, "303 more than the limit were admitted in an outage, where 300 may be"},
		{"a replica without calls", []s{{0, 0, false}}, "a replica admitted nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			table := &table{out: &out}
			for _, s := range c.seconds {
				r, n := second(s.sure, s.across, s.outage)
				table.add(r, n)
			}
			err := table.verdict()
			if c.want == "" {
				assert.NoError(t, err)
				assert.Contains(t, out.String(), "The limit held")
				return
			}
			assert.Error(t, err)
			assert.Contains(t, out.String(), c.want)
		})
	}
	var out bytes.Buffer
	table := &table{out: &out}
	table.add(row{}, counts{sure: [replicas]int{1, 1, 1}})
	require.Error(t, table.verdict())
	assert.Contains(t, out.String(), "no call was denied")
}
