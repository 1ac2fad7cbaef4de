package depth

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWaiting looks at the flag only: the tests of this package have begun already.
func TestWaiting(t *testing.T) {
	parallel := flag.Lookup("test.parallel")
	before := parallel.Value.String()
	defer func() { require.NoError(t, flag.Set("test.parallel", before)) }()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	Waiting()
	if said {
		require.Equal(t, before, parallel.Value.String())
		return
	}
	require.Equal(t, waiting, parallel.Value.String())
	require.NoError(t, flag.Set("test.parallel", "3"))
	Waiting()
	require.Equal(t, "3", parallel.Value.String())
}
