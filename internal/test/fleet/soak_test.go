package fleet

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// logged is the test's log.
type logged struct{ *testing.T }

func (l logged) Write(b []byte) (int, error) {
	l.Logf("%s", b[:len(b)-1])
	return len(b), nil
}

// TestSoak: what each key admits is within the promise, whatever faults come, and the services do not grow.
func TestSoak(t *testing.T) {
	binary, err := servers.FindRedis()
	if err != nil {
		t.Skip(err)
	}
	r := seeded.Rand(t)
	path := program(t)
	twice(t, func() error {
		s := Soak{Program: path, Server: binary, Seed: r.Uint64(), Every: 5 * time.Second, Rounds: depth.Of(3, 3, 10), Rate: 600, Out: logged{t}}
		return s.Run()
	})
}
