package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestFaults: whatever becomes of the store, all calls are answered, what is promised is admitted, and the fleet heals.
func TestFaults(t *testing.T) {
	binaries := servers.AllRedis()
	if len(binaries) == 0 {
		t.Skip(servers.ErrNoRedis)
	}
	path := program(t)
	t.Log("\n" + Header)
	for _, f := range Faults {
		tried := 0
		for _, binary := range binaries {
			if tried > 0 && !depth.Full() || f.Can(binary) != nil {
				continue
			}
			tried++
			t.Run(f.Kind+" "+f.Name, func(t *testing.T) {
				t.Parallel()
				twice(t, func() error {
					row, err := f.Try(path, binary, 2*time.Second)
					require.NoError(t, err)
					t.Log(row)
					return row.Broken
				})
			})
		}
		if tried == 0 {
			t.Log(f.Name, "not tried:", f.Can(binaries[0]))
		}
	}
}
