package rules

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

const tokens = `
domain: d
descriptors:
- key: client
  rate_limit: {unit: day, requests_per_unit: 100000, weights: {input: 1, output: 5, cached: 0.1}}
`

// TestWeights_Cost: the cost is the sum of weight and count, exactly, and is rounded once.
func TestWeights_Cost(t *testing.T) {
	for _, c := range []struct {
		counts string
		cost   int
	}{
		{"input=1000,output=200", 2000},
		{"cached=1", 1},
		{"cached=10", 1},
		{"cached=11", 2},
		{"cached=3,input=0", 1},
		{"cached=9,input=1,output=1", 7},
		{"input=0", 0},
	} {
		w := newWorld(t, Config{}, tokens)
		st := w.one("client=ann," + c.counts)
		require.Equal(t, OK, st.Code, c.counts)
		require.Equal(t, 100_000-c.cost, w.left("client=ann"), c.counts)
		require.Equal(t, 100_000, w.left("client=bob"), "each client by itself")
	}
	w := newWorld(t, Config{}, tokens)
	w.ask(withHits("client=ann,output=hits_addend", 7), withHits("client=ann", 3))
	require.Equal(t, 100_000-38, w.left("client=ann"), "hits are of the kind that the entry names, or units")
	require.Equal(t, OverLimit, w.one("client=ann,output=20000").Code)
	require.Equal(t, "d.client: unit=DAY requests_per_unit=100000, shadow_mode: false, quota_mode: false, weights: {input: 1, output: 5, cached: 0.1}",
		w.now.Load().set.rules[0].String())
}

// TestWeights_Faults: a descriptor whose counts make no number is denied, and counts nothing.
func TestWeights_Faults(t *testing.T) {
	long := strings.Repeat("9", 16)
	for counts, want := range map[string]string{
		"input=-1":               `input is "-1"; want a whole number of at most 15 digits`,
		"input=":                 `input is ""; want a whole number of at most 15 digits`,
		"input=1.5":              `input is "1.5"; want a whole number of at most 15 digits`,
		"input=%2B1":             `input is "%2B1"; want a whole number of at most 15 digits`,
		"input=" + long:          `input is "` + long + `"; want a whole number of at most 15 digits`,
		"input=1,input=1":        "input is there twice; want one entry of each kind",
		"input=1,inptu=1":        `"inptu" is none of the rule's weights; want one of input, output, cached`,
		"input=hits_addend":      "input=hits_addend stands for the hits of the descriptor; want hits, and no count beside it",
		"input=hits_addend,a=1":  "input=hits_addend stands for the hits of the descriptor; want hits, and no count beside it",
		"output=5,cached=-0":     `cached is "-0"; want a whole number of at most 15 digits`,
		"output=5, cached=1":     `" cached" is none of the rule's weights; want one of input, output, cached`,
		"output=5,client=ann":    `"client" is none of the rule's weights; want one of input, output, cached`,
		"output=５":               `output is "５"; want a whole number of at most 15 digits`,
		"output=0x10":            `output is "0x10"; want a whole number of at most 15 digits`,
		"output=9_9":             `output is "9_9"; want a whole number of at most 15 digits`,
		"output=999999999999999": "",
	} {
		w := newWorld(t, Config{}, tokens)
		st := w.one("client=ann," + counts)
		require.Equal(t, OverLimit, st.Code, counts)
		require.Equal(t, want, st.Fault, counts)
		if want != "" {
			require.Equal(t, 100_000, w.left("client=ann"), counts)
			require.EqualValues(t, 1, w.series("d.client").Over)
		}
		refund := describe("client=ann," + counts)
		refund.Refund = true
		require.Equal(t, OK, w.ask(refund).Code)
	}
	w := newWorld(t, Config{}, tokens)
	require.Equal(t, `both hits and input=5 are there; want one of them, or input=hits_addend`, w.ask(withHits("client=ann,input=5", 1)).Statuses[0].Fault)
	require.Equal(t, "input is 1000000000000000; want a whole number of at most 15 digits", w.ask(withHits("client=ann,input=hits_addend", 1e15)).Statuses[0].Fault)
	w.one("client=ann,input=10")
	bad := describe("client=ann,input=x")
	bad.Refund = true
	require.Equal(t, OK, w.ask(bad).Code)
	require.Equal(t, 99_990, w.left("client=ann"), "gives nothing back")
}

// TestWeights_FaultsTogether: where calls are counted all or none, one count that is no number keeps all from counting.
func TestWeights_FaultsTogether(t *testing.T) {
	text := "domain: d\nsluice: {atomic: %t}\ndescriptors:\n- {key: client, rate_limit: {unit: day, requests_per_unit: 9, weights: {input: 1}}, shadow_mode: %t}\n- {key: all, rate_limit: {unit: day, requests_per_unit: 9}}\n"
	for _, atomic := range []bool{false, true} {
		for _, shadow := range []bool{false, true} {
			for _, store := range []bool{false, true} {
				c := Config{}
				w := newWorld(t, c, fmt.Sprintf(text, atomic, shadow))
				if store {
					c.Clock, c.Store = w.clock, newModelStore(w.clock)
					e, err := New(w.now.Load().set, c)
					require.NoError(t, err)
					w.Engine = e
				}
				resp := w.ask(describe("all=x"), describe("client=ann,input=-1"))
				require.Equal(t, map[bool]Code{true: OK, false: OverLimit}[shadow], resp.Code)
				require.True(t, resp.Statuses[1].Over)
				want := 8
				if atomic && !shadow {
					want = 9
				}
				require.Equal(t, want, w.left("all=x"), "%t %t %t", atomic, shadow, store)
			}
		}
	}
}

// TestWeights_Model compares with rational numbers: what is charged, what is given back, and what is left.
func TestWeights_Model(t *testing.T) {
	r := seeded.Rand(t)
	weights := []string{"0", "1", "5", "0.1", "0.000000001", "2.5", "0.333333333", "999999999.999999999", "123.456000"}
	for range 300 {
		kinds := []string{"a", "b", "c"}[:1+r.IntN(3)]
		var w []string
		text := []string{}
		for _, k := range kinds {
			w = append(w, weights[1+r.IntN(len(weights)-1)])
			text = append(text, k+": "+w[len(w)-1])
		}
		const limit = math.MaxInt32 - 1
		e := newWorld(t, Config{}, fmt.Sprintf("domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: %d, algorithm: gcra, weights: {%s}}}\n", limit, strings.Join(text, ", ")))
		used := new(big.Int)
		for range 20 {
			sum := new(big.Rat)
			list := "k=x"
			for i, k := range kinds {
				n := r.Int64N(int64(math.Pow10(1 + r.IntN(15))))
				weight, _ := new(big.Rat).SetString(w[i])
				sum.Add(sum, weight.Mul(weight, new(big.Rat).SetInt64(n)))
				list += "," + k + "=" + strconv.FormatInt(n, 10)
			}
			floor := new(big.Int).Quo(sum.Num(), sum.Denom())
			d := describe(list)
			if d.Refund = r.IntN(3) == 0; d.Refund {
				e.ask(d)
				if used.Sub(used, floor); used.Sign() < 0 {
					used.SetInt64(0)
				}
				e.memory.denials = denials{most: 1 << 20}
			} else {
				cost := floor
				if !sum.IsInt() {
					cost.Add(floor, big.NewInt(1))
				}
				after := new(big.Int).Add(used, cost)
				over := after.Cmp(big.NewInt(limit)) > 0
				require.Equal(t, over, e.one(list).Over, "%s %s", text, list)
				if !over {
					used = after
				}
				e.memory.denials = denials{most: 1 << 20}
			}
			require.EqualValues(t, limit-used.Int64(), e.left("k=x"), "%s %s", text, list)
		}
	}
}

// TestWeights_FaultsGiveNothingBack: Envoy gives back what it wanted to take for a call that was refused for its counts, too, of
// all its descriptors. None of that was counted, so it adds nothing to what is left.
func TestWeights_FaultsGiveNothingBack(t *testing.T) {
	text := "domain: d\nsluice: {atomic: %t}\ndescriptors:\n- {key: client, rate_limit: {unit: day, requests_per_unit: 9, weights: {input: 1}%s}}\n- {key: all, rate_limit: {unit: day, requests_per_unit: 9%s}}\n"
	for _, atomic := range []bool{false, true} {
		for _, more := range []string{"", ", algorithm: gcra", ", algorithm: sliding-window"} {
			for _, store := range []bool{false, true} {
				c := Config{}
				w := newWorld(t, c, fmt.Sprintf(text, atomic, more, more))
				if store {
					c.Clock, c.Store = w.clock, newModelStore(w.clock)
					e, err := New(w.now.Load().set, c)
					require.NoError(t, err)
					w.Engine = e
				}
				require.Equal(t, OK, w.ask(withHits("all=x", 5), describe("client=ann,input=5")).Code)
				require.Equal(t, OverLimit, w.ask(withHits("all=x", 3), describe("client=ann,input=many")).Code)
				back := []Descriptor{withHits("all=x", 3), withHits("client=ann,input=hits_addend", 3)}
				back[0].Refund, back[1].Refund = true, true
				require.Equal(t, OK, w.ask(back...).Code)
				require.Equal(t, 4, w.left("client=ann"), "%t %q %t", atomic, more, store)
				require.Equal(t, 4, w.left("all=x"), "%t %q %t", atomic, more, store)
			}
		}
	}
}
