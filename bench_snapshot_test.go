package sluice

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// BenchmarkSnapshot writes and reads 100,000 keys, in the default number of shards. What
// matters to decisions meanwhile is how long a shard is held, which is what held is about.
func BenchmarkSnapshot(b *testing.B) {
	const keys = 100_000
	for name, c := range map[string]Config{
		"gcra":                {Limit: never},
		"sliding-window-wide": {Algorithm: SlidingWindow, Limit: Per(1<<30, 1<<40)},
		"sliding-log-100":     {Algorithm: SlidingLog, Limit: Per(100, time.Hour)},
	} {
		c.Hash, c.Clock = HashStable, NewManualClock(start)
		l := mustNew(b, c)
		for i := range keys {
			l.KeyUint64(uint64(i)).Allow()
		}
		data := snapshotOf(b, l)
		b.Run("write/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Snapshot(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
		})
		b.Run("held/"+name, func(b *testing.B) {
			shard := &l.shards[0]
			for b.Loop() {
				l.copyShard(shard, new(copies))
			}
			b.ReportMetric(float64(shard.len()), "keys/shard")
		})
		b.Run("read/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				restoredFrom(b, c, bytes.Clone(data))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
		})
	}
}
