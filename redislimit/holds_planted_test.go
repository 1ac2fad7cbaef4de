package redislimit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestHolds_Planted: faults that are planted in the script are found.
func TestHolds_Planted(t *testing.T) {
	s := anyServer(t)
	for _, f := range []struct{ name, old, new string }{
		{"units on hold drain", "- O1 - O2 - H)", "- O1 - O2)"},
		{"settled twice", "call('HDEL', holds, id)", ""},
		{"unused units stay", "H = max(0, H - total)", ""},
		{"lapsed units are free", "units = out", "units = 0"},
		{"held twice", "if record then\nm, said = wanted", "if false then\nm, said = wanted"},
		{"a settlement has no cap", "if n - total > beyond then", "if false then"},
		{"an id whose hold has ended is refused to nobody", "(once and ENDED or 1)", "1"},
		{"what has no room is held all the same", "elseif none then m, said", "elseif none then more, m, said"},
		{"held again after its end", "known = tonumber(", "known = false and tonumber("},
		{"lost units are free", "min(out * U, B)", "0"},
		{"extended beyond the limit", "@room\nif n <= room or always then m, more, store = 1, n, true elseif none then m, said, store = 1, 3, true end\nif store", "m, more, store = 1, n, true\nif store"},
		{"it lapses late", "", ""},
		{"the lapse is forgotten", "max(M, ends), L > 0 and min(L, ends) or ends", "max(M, ends), 0"},
	} {
		t.Run(f.name, func(t *testing.T) {
			script := holdScripts['b']
			good := *script
			require.NoError(t, holdsCount(t, s), "without the fault")
			text := good.text
			if old, ok := strings.CutPrefix(f.old, "@room\n"); ok {
				i := strings.LastIndex(text, old)
				require.Positive(t, i)
				text = text[:i] + f.new + text[i+len(old):]
			} else if f.name == "it lapses late" {
				text = strings.ReplaceAll(text, "ends = t + ttl", "ends = t + 2 * ttl")
			} else {
				text = strings.ReplaceAll(text, f.old, f.new)
			}
			require.NotEqual(t, good.text, text)
			*script = *newScript(text)
			defer func() { *script = good }()
			err := holdsCount(t, s)
			require.Error(t, err, "with the fault")
			t.Log(err)
		})
	}
}

// holdsCount demands of holds what a model need not tell.
func holdsCount(t *testing.T, s *server) error {
	tr := newHoldTracer(t, s, LimitConfig{Limit: sluice.PerSecond(10).WithBurst(100), MaxHolds: 10}, 1)
	store, l := tr.stores[0], tr.limits[0]
	for i, step := range []struct {
		after time.Duration
		lost  bool
		call  StoreCall
		want  int // remaining units, or
		err   error
		not   bool // denied
	}{
		{call: StoreCall{Op: OpHold, HoldID: "1", Cost: 50, TTL: time.Hour}, want: 50},
		{after: time.Second, call: StoreCall{Op: OpPeek}, want: 50},
		{call: StoreCall{Op: OpHold, HoldID: "1", Cost: 50, TTL: time.Hour}, want: 50},
		{call: StoreCall{Op: OpExtend, HoldID: "1", Cost: 60}, want: 50, not: true},
		{call: StoreCall{Op: OpExtend, HoldID: "1", Cost: 10}, want: 40},
		{call: StoreCall{Op: OpSettle, HoldID: "1", Cost: 20}, want: 80},
		{call: StoreCall{Op: OpSettle, HoldID: "1", Cost: 20}, err: ErrNotHeld},
		{call: StoreCall{Op: OpHold, HoldID: "1", Cost: 50, TTL: time.Hour}, want: 80},
		{call: StoreCall{Op: OpHold, HoldID: "1", Cost: 50, TTL: time.Hour, Once: true}, err: ErrEndedHold},
		{call: StoreCall{Op: OpHold, HoldID: "1", Cost: 51, TTL: time.Hour, Once: true}, err: ErrOtherHold},
		{call: StoreCall{Op: OpHold, HoldID: "none", Cost: 81, TTL: time.Hour, OrNone: true}, want: 80, not: true},
		{call: StoreCall{Op: OpExtend, HoldID: "none", Cost: 81, OrNone: true}, want: 80, not: true},
		{call: StoreCall{Op: OpSettle, HoldID: "none"}, want: 80},
		{call: StoreCall{Op: OpHold, HoldID: "cut", Cost: 1, TTL: time.Hour}, want: 79},
		{call: StoreCall{Op: OpSettle, HoldID: "cut", Cost: 90, Capped: true, Debt: 4}, want: 75},
		{call: StoreCall{Op: OpRefund, Cost: 5}, want: 80},
		{after: 10 * time.Second, call: StoreCall{Op: OpHold, HoldID: "2", Cost: 30, TTL: time.Second}, want: 70},
		{after: 2 * time.Second, call: StoreCall{Op: OpPeek}, want: 80},
		{call: StoreCall{Op: OpHold, HoldID: "3", Cost: 40, TTL: time.Hour}, want: 40},
		{lost: true, call: StoreCall{Op: OpPeek}, want: 40},
		{call: StoreCall{Op: OpSettle, HoldID: "3"}, err: ErrNotHeld},
	} {
		tr.now += step.after.Microseconds()
		if step.lost {
			holds, times := holdNames(l.keys.of("a"))
			require.NoError(t, s.client.Del(ctx, l.keys.of("a"), holds, times).Err())
		}
		step.call.Limit, step.call.Key = l, "a"
		r := do(t, store, step.call)[0]
		if r.Err != step.err || r.Err == nil && (r.Decision.Remaining != step.want || r.Decision.Allowed == step.not || r.Source != FromRedis) {
			return fmt.Errorf("step %d, %v: %+v; want %d, denied %v, %v", i, step.call.Op, r, step.want, step.not, step.err)
		}
	}
	return nil
}
