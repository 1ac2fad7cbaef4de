package machine

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestDescribe(t *testing.T) {
	m := Describe(time.Date(2026, 1, 2, 23, 0, 0, 0, time.FixedZone("", -2*3600)), 7, nil)
	assert.Equal(t, "2026-01-03", m.Date, "in UTC")
	assert.Equal(t, 7, m.Rounds)
	assert.NotEmpty(t, m.Commit)
	assert.NotEmpty(t, m.CPU)
	assert.Positive(t, m.Cores)
	assert.Empty(t, m.Versions)
}

func TestModelName(t *testing.T) {
	assert.Equal(t, "Example 9000", modelName(strings.NewReader("processor\t: 0\nmodel name\t: Example 9000\nmodel name\t: Other\n")))
	assert.Equal(t, "Example 9000 (family 25, model 17)", modelName(strings.NewReader("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Example 9000\ncpu family\t: 6\n")))
	assert.Empty(t, modelName(strings.NewReader("Processor: ARM\n")))
}

func TestCommit_OutsideOfAClone(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("GIT_CEILING_DIRECTORIES", "/")
	assert.Equal(t, "unknown", commit())
}

func TestAvailable_IsWhatTheSystemSays(t *testing.T) {
	assert.EqualValues(t, 23050<<10, available(strings.NewReader("MemTotal:  24152 kB\nMemFree: 1 kB\nMemAvailable:   23050 kB\n")))
	assert.EqualValues(t, math.MaxInt64, available(strings.NewReader("MemTotal: 24152 kB\n")), "it does not say")
	assert.Positive(t, Available())
}
