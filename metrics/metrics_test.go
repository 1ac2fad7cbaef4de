package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSet_Validate(t *testing.T) {
	named := func(name string) Set {
		return Set{Labels: []Label{{"limiter", name}}, Read: func(Yield) {}}
	}
	require.NoError(t, named("a \"name\"\nof \\ two lines, ü").Validate())
	require.NoError(t, Set{Read: func(Yield) {}}.Validate(), "an engine has no name")
	require.EqualError(t, named("").Validate(), `metrics: the label "limiter" is empty, which Prometheus takes for no label; want a name such as "login"`)
	require.EqualError(t, named("a\xff").Validate(), `metrics: the label "limiter" is "a\xff", which is not UTF-8; want a name such as "login"`)
	require.EqualError(t, Set{}.Validate(), "metrics: the Set is empty; want the Metrics of a limiter, a tier or an engine")
}
