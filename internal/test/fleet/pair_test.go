package fleet

import (
	"testing"

	"github.com/sluice-go/sluice/internal/test/depth"
)

// TestPair: two gateways that are offered 800 calls a second admit 495 to 500, each second.
func TestPair(t *testing.T) {
	server := anyServer(t)
	path := program(t)
	twice(t, func() error {
		// On a busy machine 5 ms are soon over.
		p, err := RunPair(path, "redis://"+server.Addr, depth.Of(5, 5, 60), "--store-budget", "100ms")
		if err != nil {
			return err
		}
		t.Log(p.Seconds)
		return p.Judge()
	})
}
