package results

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSaveLoad_NothingIsLost(t *testing.T) {
	r := Results{
		Machine:  Machine{Date: "2026-01-02", Cores: 2, Versions: map[string]string{"a": "v1"}},
		Subjects: []Subject{{Name: "s", Kind: "ours"}},
		Speed:    []Speed{{Subject: "s", Workload: "hot", Mode: "serial", Keys: 1, Samples: []float64{1.25, 1e6 + 0.1}}},
		Memory:   []Memory{{Subject: "s", Keys: 1, GC: []time.Duration{5}}},
		Stall:    []Stall{{Subject: "s", P9999: 7}},
		Omitted:  []Omission{{Reason: "none"}},
	}
	path := filepath.Join(t.TempDir(), File)
	require.NoError(t, Save(path, r))
	var got Results
	err := Load(path, &got)
	require.NoError(t, err)
	assert.Equal(t, r, got)
}

func TestLoad_ErrorsNameTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	err := Load(path, &Results{})
	assert.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o644))
	err = Load(path, &Results{})
	assert.ErrorContains(t, err, path)
	assert.Error(t, Save(t.TempDir(), Results{}))
}
