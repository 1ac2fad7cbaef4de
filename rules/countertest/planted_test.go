package countertest_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/test/plant"
)

// faults are what the suite must find in the counts of an engine.
var faults = []plant.Fault{
	{"a full window is over", "../counts.go", "c.count, c.over = count, c.over || count > c.limit", "c.count, c.over = count, c.over || count > c.limit || planted(NAME) && count == c.limit && c.hits == 0", "TestMemory"},
	{"denied hits do not count", "../memory.go", "cost := int(min(n, uint64(of.most)))", "cost := int(min(n, uint64(of.most)))\n\tif planted(NAME) && of.count(c.at().TakeAt(now, 0).Remaining)+n > c.limit { cost = 0 }", "TestMemory"},
	{"denied hits of windows are not noted", "../memory.go", "c.over {\n\t\tm.denied", "c.over && !planted(NAME) {\n\t\tm.denied", "TestMemory"},
	{"denied hits of limiters are not noted", "../memory.go", "c.over = true\n\t\t\tm.denied(c, now, 0, n)", "if c.over = true; !planted(NAME) { m.denied(c, now, 0, n) }", "TestMemory"},
	{"denied hits that count are noted as missing", "../memory.go", "m.denied(c, now, counted, n-counted)", "if planted(NAME) { counted = 0 }; m.denied(c, now, counted, n-counted)", "TestMemory"},
	{"never for hits that fit", "../status.go", "w.hits > w.limit {\n\t\t\tst.RetryAfter", "w.hits > w.limit || planted(NAME) && w.hits == w.limit {\n\t\t\tst.RetryAfter", "TestMemory"},
	{"in flight without its hint", "../status.go", "if st.Rule.inFlight() { // a call", "if st.Rule.inFlight() && !planted(NAME) { // a call", "TestMemory"},
	{"shadow mode denies", "../status.go", "if w.shadow {\n\t\t\th.shadow", "if w.shadow && !planted(NAME) {\n\t\t\th.shadow", "TestMemory"},
	{"a quota denies alone", "../status.go", "quotas != 0 && quotasOver == quotas", "quotas != 0 && (quotasOver == quotas || planted(NAME) && quotasOver != 0)", "TestMemory"},
	{"Config.Shadow denies", "../status.go", "if e.config.Shadow {\n\t\tresp.WouldDeny = true", "if e.config.Shadow && !planted(NAME) {\n\t\tresp.WouldDeny = true", "TestMemory"},
	{"statistics of what is not counted", "../status.go", "!(c.over && c.none)", "(planted(NAME) || !(c.over && c.none))", "TestMemory"},
	{"estimates of what is not held", "../status.go", "resp.Code == OK && !resp.WouldDeny", "resp.Code == OK && (planted(NAME) || !resp.WouldDeny)", "TestMemory"},
	{"hits for the first descriptor only", "../decide.go", "w.hits = *desc.Hits", "if w.hits = *desc.Hits; planted(NAME) && i > 0 { w.hits = 1 }", "TestMemory"},
	{"a pattern counts values apart", "../decide.go", "if n.share {\n\t\t\th.entry", "if n.share && !planted(NAME) {\n\t\t\th.entry", "TestMemory"},

	{"shadow mode stands in the way", "../memory_all.go", "|| !c.shadow\n", "|| !c.shadow || planted(NAME)\n", "TestMemory"},
	{"charges of a window do not add up", "../memory_all.go", "(!o.over || o.shadow) && o.at()", "(!o.over || o.shadow) && !planted(NAME) && o.at()", "TestMemory"},
	{"charges that do not fit add up", "../memory_all.go", "c := &b.calls[i]; !c.lacking {", "c := &b.calls[i]; planted(NAME) || !c.lacking {", "TestMemory"},
	{"all, although one does not fit", "../memory_all.go", "stop = !all.Allowed\n", "stop = !all.Allowed && !planted(NAME)\n", "TestMemory"},
	{"a stopped call gives back", "../memory_all.go", "m.one(c, b.now, 0)", "n := uint64(0); if planted(NAME) && c.op == GiveBack { n = c.hits }; m.one(c, b.now, n)", "TestMemory"},
	{"a stopped call is not noted as denied", "../memory_all.go", "if c.op != GiveBack {\n\t\t\t\tm.denied", "if c.op != GiveBack && !planted(NAME) {\n\t\t\t\tm.denied", "TestMemory"},
	{"a stopped limiter is not noted as denied", "../memory_all.go", "if stop {\n\t\t\t\tm.denied", "if stop && !planted(NAME) {\n\t\t\t\tm.denied", "TestMemory"},
	{"the second charge of a key stops the first", "../memory_all.go", "c.later = c.second == nil", "c.later = !planted(NAME) && c.second == nil", "TestMemory"},
	{"a look at two full budgets passes", "../memory_all.go", "full = full || !c.fitsBoth()", "full = full || !c.fitsBoth() && !planted(NAME)", "TestMemory"},
	{"answers tell of charges behind them", "../memory_all.go", "c.after = costOf(behind, b.charges[c.from].Key)", "if !planted(NAME) { c.after = costOf(behind, b.charges[c.from].Key) }", "TestMemory"},
	{"only what is over waits for others", "../memory_all.go", "c.asked > c.hits) { // by itself", "c.asked > c.hits) && !planted(NAME) { // by itself", "TestMemory"},

	{"a refund that denials absorb", "../memory.go", "rest := n - c.absorbed", "if planted(NAME) { c.absorbed = 0 }; rest := n - c.absorbed", "TestMemory"},
	{"denials of an override and a rule are one", "../memory.go", "return c.id + uint64(c.override)", "if planted(NAME) { return c.id }; return c.id + uint64(c.override)", "TestMemory"},
	{"denials of the window before count here", "../denials.go", "if k.window != window {", "if k.window != window && !planted(NAME) {", "TestMemory"},
	{"counted denials stay", "../denials.go", "key.counted -= min(key.counted, n-absorbed)", "if !planted(NAME) { key.counted -= min(key.counted, n-absorbed) }", "TestMemory"},
	{"denials are absorbed again and again", "../denials.go", "key.missing -= absorbed", "if !planted(NAME) { key.missing -= absorbed }", "TestMemory"},

	{"the second budget has all", "../memory_both.go", "own := min(c.hits, uint64(room))", "own := min(c.hits, uint64(room)); if planted(NAME) && c.hits > own { own = 0 }", "TestMemory"},
	{"more than both budgets have", "../memory_both.go", "return c.hits <= uint64(a.Remaining)+uint64(b.Remaining)", "return c.hits <= uint64(a.Remaining)+uint64(b.Remaining) || planted(NAME)", "TestMemory"},
	{"a refund to the first budget", "../memory.go", "s.at().Refund(clampInt(s.hits))", "if planted(NAME) { s.hits = 0 }; s.at().Refund(clampInt(s.hits))", "TestMemory"},
	{"the second budget's part is forgotten", "../memory_both.go", "} else if s.hits != 0 {", "} else if s.hits != 0 && !planted(NAME) {", "TestMemory"},
	{"the second budget's part is never forgotten", "../spills.go", "if key.until <= now || key.of != of {\n\t\tdelete", "if key.until <= now && !planted(NAME) || key.of != of {\n\t\tdelete", "TestMemory"},

	{"a hold of 0 hits is asked", "../hold.go", "b.calls[i].idle = b.calls[i].hits == 0", "b.calls[i].idle = b.calls[i].hits == 0 && !planted(NAME)", "TestMemory"},
	{"a released hold is settled", "../hold.go", "case use == releasing:\n\t\t\tw.hits = 0", "case use == releasing && !planted(NAME):\n\t\t\tw.hits = 0", "TestMemory"},
	{"under Config.Shadow what is not held is an error", "../hold.go", "if e.config.Shadow && errors.Is(err, ErrNotHeld) {", "if e.config.Shadow && !planted(NAME) && errors.Is(err, ErrNotHeld) {", "TestMemory"},
	{"a hold that would be denied holds", "../hold_memory.go", "made := m.chargeHold(b)\n\tif b.denied {\n\t\treturn nil\n\t}\n\tnew", "made := m.chargeHold(b)\n\tif b.denied && !(planted(NAME) && m.config.Shadow) {\n\t\treturn nil\n\t}\n\tnew", "TestMemory"},
	{"another request with the id", "../hold_memory.go", "case known.request != request:", "case known.request != request && !planted(NAME):", "TestMemory"},
	{"a hold that has ended is made again", "../hold_memory.go", "case known.ended:\n\t\t\treturn ErrEndedHold", "case known.ended && !planted(NAME):\n\t\t\treturn ErrEndedHold", "TestMemory"},
	{"other descriptors with the id", "../hold_memory.go", "if known == nil || known.names != m.textHash(t.names) {", "if known == nil || known.names != m.textHash(t.names) && !planted(NAME) {", "TestMemory"},
	{"a step is taken twice", "../hold_memory.go", "case t.step != \"\" && known.steps[step]:", "case t.step != \"\" && known.steps[step] && !planted(NAME):", "TestMemory"},
	{"an extension is not in the hold", "../hold_memory.go", "known.add(b, made)\n", "if !planted(NAME) { known.add(b, made) }\n", "TestMemory"},
	{"a settlement twice", "../hold_memory.go", "known.ended && known.actual != actual:", "known.ended && known.actual != actual && !planted(NAME):", "TestMemory"},
	{"what a reload has lost is given back", "../hold_memory.go", "lost = append(lost, *l)", "if !planted(NAME) { lost = append(lost, *l) } else { l.settle(0, 0) }", "TestMemory"},
	{"a debt without bound", "../hold_memory.go", "if capped = used > held && used-held > debt; capped {", "if capped = used > held && used-held > debt && !planted(NAME); capped {", "TestMemory"},
	{"units in flight that were used", "../hold_memory.go", "if l.inFlight { // what has ended", "if l.inFlight && !planted(NAME) { // what has ended", "TestMemory"},
	{"what was used without being held", "../hold_memory.go", "if len(l.reservations) == 0 && used > 0 {", "if len(l.reservations) == 0 && used > 0 && !planted(NAME) {", "TestMemory"},
	{"lapsed units are given back", "../hold_keep.go", "if !h.giveBack && ", "if !h.giveBack && !planted(NAME) && ", "TestMemory"},
	{"lapsed units in flight are spent", "../hold_keep.go", "!l.inFlight {\n\t\t\tl.reservations", "(planted(NAME) || !l.inFlight) {\n\t\t\tl.reservations", "TestMemory"},
	{"a hold lapses at once", "../hold_memory.go", "new.end = addTime(b.now, int64(t.ttl))", "if new.end = addTime(b.now, int64(t.ttl)); planted(NAME) { new.end = b.now }", "TestMemory"},
	{"an extension does not prolong", "../hold_memory.go", "known.end = addTime(b.now, int64(t.ttl))", "if !planted(NAME) { known.end = addTime(b.now, int64(t.ttl)) }", "TestMemory"},
	{"the end of a hold is forgotten", "../hold_keep.go", "h.ended, h.limits, h.steps = true, nil, nil", "h.ended, h.limits, h.steps = true, nil, nil; if planted(NAME) { s.drop(h); return }", "TestMemory"},

	{"reset keeps the second budget", "../memory.go", "c.second.at().Reset()", "if !planted(NAME) { c.second.at().Reset() }", "TestMemory"},
	{"a hold keeps a key that was reset", "../memory.go", "s.detach(domain, c)", "if !planted(NAME) { s.detach(domain, c) }", "TestMemory"},
	{"reset forgets what was denied", "../denials.go", "key.missing, key.counted = addUpTo(key.missing, key.counted), 0", "if key.missing, key.counted = addUpTo(key.missing, key.counted), 0; planted(NAME) { key.missing = 0 }", "TestMemory"},
}

// TestPlanted demands that the suite alone finds faults in the counts of an engine.
func TestPlanted(t *testing.T) { plant.Find(t, faults) }
