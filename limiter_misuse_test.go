package sluice

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLimiter_NotMadeByNew: whoever forgets to make a limiter is told so.
func TestLimiter_NotMadeByNew(t *testing.T) {
	for name, l := range map[string]*Limiter{"nil": nil, "zero": new(Limiter)} {
		k := Key{lim: l}
		calls := map[string]func(){
			"Allow":         func() { l.Allow("k") },
			"AllowN":        func() { l.AllowN("k", 1) },
			"Take":          func() { l.Take("k", 1) },
			"Peek":          func() { l.Peek("k", 1) },
			"Status":        func() { l.Status("k") },
			"Key":           func() { l.Key("k") },
			"KeyBytes":      func() { l.KeyBytes([]byte("k")) },
			"KeyUint64":     func() { l.KeyUint64(1) },
			"KeyAddr":       func() { l.KeyAddr(netip.IPv6Loopback()) },
			"KeyHash":       func() { l.KeyHash(1) },
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

			"Key.Allow":      func() { k.Allow() },
			"Key.AllowN":     func() { k.AllowN(1) },
			"Key.AllowAt":    func() { k.AllowAt(0, 1) },
			"Key.Take":       func() { k.Take(1) },
			"Key.TakeAt":     func() { k.TakeAt(0, 1) },
			"Key.Peek":       func() { k.Peek(1) },
			"Key.PeekAt":     func() { k.PeekAt(0, 1) },
			"Key.Status":     func() { k.Status() },
			"Key.StatusAt":   func() { k.StatusAt(0) },
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
		}
		for of, prefix := range map[reflect.Type]string{reflect.TypeFor[*Limiter](): "", reflect.TypeFor[Key](): "Key."} {
			for i := range of.NumMethod() {
				require.Contains(t, calls, prefix+of.Method(i).Name)
			}
		}
		for call, f := range calls {
			t.Run(name+"/"+call, func(t *testing.T) {
				require.PanicsWithValue(t, notMade, f)
			})
		}
	}
}
