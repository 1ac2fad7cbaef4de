package fleet

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestSoak_Streams: whatever dies, each unit of each stream is accounted for in the end, and none is in flight. Redis
// forgets nothing here: see the README for one that does.
func TestSoak_Streams(t *testing.T) {
	binary, err := servers.FindRedis()
	if err != nil {
		t.Skip(err)
	}
	n := depth.Of(0, 60, 60)
	if os.Getenv("SLUICE_FLEET") != "" {
		n = depth.Of(300, 1000, 1000)
	} else if n == 0 {
		t.Skip("this takes half a minute of real time")
	}
	path, err := built()
	require.NoError(t, err)
	r := seeded.Rand(t)
	s := Streams{Program: path, Server: binary, Seed: r.Uint64(), Streams: n, AtOnce: 120, Out: logged{t}}
	require.NoError(t, s.Run())
}

// told is a stream whose client has been told so; a try begins each second, and takes half of one.
func told(calls ...holdCall) *stream {
	s := &stream{id: "s0", user: "u0", estimate: 100, dies: -1, calls: calls}
	at := time.Unix(0, 0)
	for i := range s.calls {
		c := &s.calls[i]
		if c.sent.IsZero() {
			at = at.Add(time.Second)
			c.sent, c.back = at, at.Add(time.Second/2)
		}
	}
	return s
}

// TestStream: what a stream may count follows from what its client has been told; and what it cannot be told is found.
func TestStream(t *testing.T) {
	held := holdCall{verb: hold, tokens: 100, outcome: done}
	late := time.Unix(20, 0)
	for name, c := range map[string]struct {
		calls []holdCall
		back  bool
		want  []uint64
		wrong bool
	}{
		"nothing":                      {want: []uint64{0}},
		"denied":                       {calls: []holdCall{{verb: hold, outcome: denied}}, want: []uint64{0}},
		"dies":                         {calls: []holdCall{held}, want: []uint64{100}},
		"dies, and gives back":         {calls: []holdCall{held}, back: true, want: []uint64{0}},
		"no answer":                    {calls: []holdCall{{verb: hold}}, want: []uint64{0, 100}},
		"no answer, then denied":       {calls: []holdCall{{verb: hold}, {verb: hold, outcome: denied}}, want: []uint64{0, 100}},
		"no answer, then held":         {calls: []holdCall{{verb: hold}, held}, want: []uint64{100}},
		"extended":                     {calls: []holdCall{held, {verb: extend, tokens: 5, outcome: done}}, want: []uint64{105}},
		"extended by two tries":        {calls: []holdCall{held, {verb: extend, tokens: 5}, {verb: extend, tokens: 5, outcome: done}}, want: []uint64{105}},
		"maybe extended":               {calls: []holdCall{held, {verb: extend, tokens: 5}}, want: []uint64{100, 105}},
		"cut":                          {calls: []holdCall{held, {verb: extend, tokens: 5, outcome: denied}}, want: []uint64{100}},
		"settled":                      {calls: []holdCall{held, {verb: settle, tokens: 7, outcome: done}}, back: true, want: []uint64{7}},
		"maybe settled":                {calls: []holdCall{held, {verb: settle, tokens: 7}}, want: []uint64{7, 100}},
		"released":                     {calls: []holdCall{held, {verb: release, outcome: done}}, want: []uint64{0}},
		"settled late":                 {calls: []holdCall{held, {verb: settle, tokens: 7, outcome: gone, sent: late, back: late}}, want: []uint64{100}},
		"lost before it lapses":        {calls: []holdCall{held, {verb: settle, tokens: 7, outcome: gone}}, wrong: true},
		"settled, although it lapsed":  {calls: []holdCall{held, {verb: settle, tokens: 7, outcome: done, sent: late, back: late}}, wrong: true},
		"a hold that says it is gone":  {calls: []holdCall{{verb: hold, outcome: gone}}, wrong: true},
		"extended after it has lapsed": {calls: []holdCall{held, {verb: extend, tokens: 5, outcome: gone, sent: late, back: late}}, want: []uint64{100}},
	} {
		s := told(c.calls...)
		s.giveBack = c.back
		may, err := s.possible(false)
		require.Equal(t, c.wrong, err != nil, "%s: %v", name, err)
		require.Equal(t, c.want, may, name)
	}
}

// TestStream_Account: the account finds each unit that is too many or too few, and a place that is still taken.
func TestStream_Account(t *testing.T) {
	s := told(holdCall{verb: hold, tokens: 100, outcome: done}, holdCall{verb: settle, tokens: 7, outcome: done})
	for name, c := range map[string]struct {
		own, tokens, places uint64
		wrong               string
	}{
		"right":     {7, 7, 0, ""},
		"own":       {8, 8, 0, "s0 counts 8, and not [7]"},
		"tokens":    {7, 8, 0, "the tokens of u0 are 8, and its streams count 7"},
		"minted":    {7, 6, 0, "the tokens of u0 are 6, and its streams count 7"},
		"in flight": {7, 7, 1, "1 streams of u0 are still in flight"},
	} {
		a := account{streams: []*stream{s}, counts: map[[2]string]uint64{{"own", "s0"}: c.own, {"tokens", "u0"}: c.tokens, {"streams", "u0"}: c.places}}
		_, err := a.judge()
		if c.wrong == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.wrong, name)
		}
	}
	var many []*stream
	for range streamPlaces + 1 {
		many = append(many, told(holdCall{verb: hold, tokens: 100, outcome: done}))
	}
	require.Equal(t, streamPlaces+1, atOnce(many, "u0"))
	require.Equal(t, 1, atOnce([]*stream{s}, "u0"))
	require.Len(t, requestsOf(many, "u0"), streamPlaces+1)
}

// TestStream_Risk: what may be lost is what nobody has seen who tells of it after the loss.
func TestStream_Risk(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(0, 0).Add(time.Duration(s * float64(time.Second))) }
	first, other := &instance{}, &instance{}
	call := func(by *instance, v verb, tokens uint64, sent float64) holdCall {
		return holdCall{verb: v, tokens: tokens, outcome: done, sent: at(sent), back: at(sent + 0.5), by: by}
	}
	lost := []loss{{at(10), at(11)}}
	risk := func(calls ...holdCall) (uint64, int) {
		first.began, other.began = at(-1), at(-1)
		a := account{streams: []*stream{{user: "u0", calls: calls}}, losses: lost}
		return a.risk("u0")
	}
	for name, c := range map[string]struct {
		calls  []holdCall
		tokens uint64
		holds  int
	}{
		"told by who has made it":     {calls: []holdCall{call(first, hold, 100, 1), call(first, extend, 1, 12)}},
		"told by who has seen it":     {calls: []holdCall{call(first, hold, 100, 1), call(other, extend, 1, 3), call(other, extend, 1, 12)}},
		"seen by nobody who tells":    {calls: []holdCall{call(first, hold, 100, 1), call(other, extend, 1, 12)}, tokens: 100, holds: 1},
		"seen before it was made":     {calls: []holdCall{call(other, extend, 1, 0), call(first, extend, 100, 1), call(other, extend, 1, 12)}, tokens: 100},
		"made after the loss":         {calls: []holdCall{call(first, hold, 100, 12)}},
		"made before others tell":     {calls: []holdCall{call(first, hold, 100, 1), call(other, hold, 5, 11.2), call(first, extend, 1, 12)}, tokens: 5, holds: 1},
		"nobody tells":                {calls: []holdCall{call(first, hold, 100, 1), call(first, settle, 7, 2)}, tokens: 107, holds: 1},
		"nothing is left to be known": {calls: []holdCall{call(first, release, 0, 1)}},
	} {
		tokens, holds := risk(c.calls...)
		require.Equal(t, c.tokens, tokens, name)
		require.Equal(t, c.holds, holds, name)
	}
	first.died = at(11.5)
	tokens, _ := risk(call(first, hold, 100, 1), call(other, extend, 1, 12))
	require.EqualValues(t, 100, tokens)
}
