package sluice

import "testing"

func TestLeakyBucket_Trace(t *testing.T) {
	runTrace(t, Config{Algorithm: LeakyBucket, Limit: PerSecond(2).WithBurst(4)}, bucketTrace)
}
