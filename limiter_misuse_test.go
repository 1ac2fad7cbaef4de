package sluice

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLimiter_NotMadeByNew: whoever forgets to make a limiter is told so.
func TestLimiter_NotMadeByNew(t *testing.T) {
	for name, l := range map[string]*Limiter{"nil": nil, "zero": new(Limiter)} {
		k := Key{lim: l}
		for call, f := range map[string]func(){
			"Reset":         func() { l.Reset("k") },
			"Refund":        func() { l.Refund("k", 1) },
			"Block":         func() { l.Block("k", time.Second) },
			"Unblock":       func() { l.Unblock("k") },
			"Charge":        func() { l.Charge("k", 1) },
			"TakeUpTo":      func() { l.TakeUpTo("k", 1) },
			"Wait":          func() { _ = l.Wait(t.Context(), "k", 1) },
			"Reserve":       func() { _, _ = l.Reserve("k", 1, 0) },
			"SetLimit":      func() { _ = l.SetLimit(PerSecond(1)) },
			"SetKeyLimit":   func() { _ = l.SetKeyLimit("k", PerSecond(1)) },
			"ClearKeyLimit": func() { l.ClearKeyLimit("k") },
			"KeyLimit":      func() { l.KeyLimit("k") },
			"Snapshot":      func() { _ = l.Snapshot(new(bytes.Buffer)) },
			"Restore":       func() { _ = l.Restore(new(bytes.Buffer)) },
			"Config":        func() { l.Config() },
			"Stats":         func() { l.Stats() },
			"Len":           func() { l.Len() },
			"Sweep":         func() { l.Sweep() },
			"WorstCase":     func() { l.WorstCase(1) },
			"TopDenied":     func() { l.TopDenied() },
			"Plans":         func() { l.Plans() },
			"KeyLimits":     func() { l.KeyLimits() },
			"SetPlan":       func() { _ = l.SetPlan("p", PerSecond(1)) },
			"ClearPlan":     func() { l.ClearPlan("p") },
			"SetKeyPlan":    func() { _ = l.SetKeyPlan("k", "p") },
			"TakeAll":       func() { TakeAll(Charge{k, 1}) },
			"ReserveAll":    func() { _, _ = ReserveAll(0, Charge{k, 1}, Charge{k, 1}) },
			"WaitAll":       func() { _ = WaitAll(t.Context(), Charge{k, 1}) },

			"Key.Reset":      func() { k.Reset() },
			"Key.Refund":     func() { k.Refund(1) },
			"Key.Block":      func() { k.Block(time.Second) },
			"Key.Unblock":    func() { k.Unblock() },
			"Key.Charge":     func() { k.Charge(1) },
			"Key.ChargeAt":   func() { k.ChargeAt(0, 1) },
			"Key.TakeUpTo":   func() { k.TakeUpTo(1) },
			"Key.TakeUpToAt": func() { k.TakeUpToAt(0, 1) },
			"Key.Wait":       func() { _ = k.Wait(t.Context(), 1) },
			"Key.Reserve":    func() { _, _ = k.Reserve(1, 0) },
			"Key.SetLimit":   func() { _ = k.SetLimit(PerSecond(1)) },
			"Key.ClearLimit": func() { k.ClearLimit() },
			"Key.Limit":      func() { k.Limit() },
			"Key.Named":      func() { k.Named(func() string { return "k" }) },
			"Key.SetPlan":    func() { _ = k.SetPlan("p") },
			"Key.WithLimit":  func() { _, _ = k.WithLimit(PerSecond(1)) },
			"Key.WithPlan":   func() { _, _ = k.WithPlan("p") },
		} {
			t.Run(name+"/"+call, func(t *testing.T) {
				require.PanicsWithValue(t, "sluice: this Limiter has not been made by New, or this Key by no Limiter; want sluice.New(sluice.Config{Limit: sluice.PerSecond(100)}), and Key of that", f)
			})
		}
		for call, f := range map[string]func(){
			"Allow": func() { l.Allow("k") },
			"Take":  func() { k.Take(1) },
		} {
			require.Panics(t, f, "%s %s, without a sentence", name, call)
		}
	}
}
