package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNearest(t *testing.T) {
	flags := []string{"rules", "redis", "redis-tls", "algorithm", "limit", "from", "to", "drain", "output"}
	for typed, want := range map[string]string{
		"rulse": "rules", "rule": "rules", "algoritm": "algorithm", "alg": "algorithm", "limits": "limit", "form": "from", "redi": "redis", "outptu": "output",
		"": "", "x": "", "red": "", "tt": "", "colour": "", "drainage": "",
	} {
		assert.Equal(t, want, nearest(typed, flags), typed)
	}
}
