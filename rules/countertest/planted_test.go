package countertest_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/plant"
)

// faults are what the suite must find in the counts of an engine.
var faults = []plant.Fault{
	{"a full window is over", "../decide.go", "over, before := count > w.limit ||", "over, before := count > w.limit || planted(NAME) && count == w.limit && w.hits == 0 ||", "TestMemory"},
	{"denied hits do not count", "../decide.go", "cost := int(min(n, uint64(w.most)))", "cost := int(min(n, uint64(w.most)))\n\tif planted(NAME) && uint64(w.most-w.key().TakeAt(now, 0).Remaining)+n > w.limit { cost = 0 }", "TestMemory"},
	{"denied hits of windows are not noted", "../decide.go", "if after > w.limit || w.over {", "if (after > w.limit || w.over) && !planted(NAME) {", "TestMemory"},
	{"denied hits of limiters are not noted", "../decide.go", "if !d.Allowed {\n\t\t\te.deny(w, st, now, 0, n)", "if !d.Allowed && !planted(NAME) {\n\t\t\te.deny(w, st, now, 0, n)", "TestMemory"},
	{"denied hits that count are noted as missing", "../decide.go", "e.deny(w, st, now, counted, n-counted)", "if planted(NAME) { counted = 0 }; e.deny(w, st, now, counted, n-counted)", "TestMemory"},
	{"never for hits that fit", "../decide.go", "w.hits > w.limit {\n\t\t\tst.RetryAfter", "w.hits > w.limit || planted(NAME) && w.hits == w.limit {\n\t\t\tst.RetryAfter", "TestMemory"},
	{"in flight without its hint", "../decide.go", "if st.Rule.inFlight() { // a call", "if st.Rule.inFlight() && !planted(NAME) { // a call", "TestMemory"},
	{"shadow mode denies", "../decide.go", "if w.shadow {\n\t\t\th.shadow", "if w.shadow && !planted(NAME) {\n\t\t\th.shadow", "TestMemory"},
	{"a quota denies alone", "../decide.go", "quotasOver < quotas) {", "quotasOver < quotas && !planted(NAME)) {", "TestMemory"},
	{"Config.Shadow denies", "../decide.go", "if e.config.Shadow {\n\t\tresp.WouldDeny = true", "if e.config.Shadow && !planted(NAME) {\n\t\tresp.WouldDeny = true", "TestMemory"},
	{"statistics of what is not counted", "../decide.go", "!(over && w.none)", "(planted(NAME) || !(over && w.none))", "TestMemory"},
	{"estimates of what is not held", "../decide.go", "resp.Code == OK && !resp.WouldDeny", "resp.Code == OK && (planted(NAME) || !resp.WouldDeny)", "TestMemory"},
	{"hits for the first descriptor only", "../decide.go", "w.hits = *desc.Hits", "if w.hits = *desc.Hits; planted(NAME) && i > 0 { w.hits = 1 }", "TestMemory"},
	{"a pattern counts values apart", "../decide.go", "if n.share {\n\t\t\th.entry", "if n.share && !planted(NAME) {\n\t\t\th.entry", "TestMemory"},

	{"shadow mode stands in the way", "../together.go", "stop = stop || !atomic || !w.shadow", "stop = stop || !atomic || !w.shadow || planted(NAME)", "TestMemory"},
	{"charges of a window do not add up", "../together.go", "(!o.over || o.shadow) && o.id", "(!o.over || o.shadow) && !planted(NAME) && o.id", "TestMemory"},
	{"charges that do not fit add up", "../together.go", "w := &resp.work[i]; !w.lacking {", "w := &resp.work[i]; planted(NAME) || !w.lacking {", "TestMemory"},
	{"all, although one does not fit", "../together.go", "stop = !all.Allowed\n", "stop = !all.Allowed && !planted(NAME)\n", "TestMemory"},
	{"a stopped call gives back", "../together.go", "w.none = d.atomic\n\t\t\te.take(w, st, now, 0)", "w.none = d.atomic\n\t\t\tn := uint64(0); if planted(NAME) && w.refund { n = w.hits }; e.take(w, st, now, n)", "TestMemory"},
	{"a stopped call is not noted as denied", "../together.go", "if !w.refund {\n\t\t\t\te.deny", "if !w.refund && !planted(NAME) {\n\t\t\t\te.deny", "TestMemory"},
	{"a stopped limiter is not noted as denied", "../together.go", "if stop {\n\t\t\t\te.deny", "if stop && !planted(NAME) {\n\t\t\t\te.deny", "TestMemory"},
	{"the second charge of a key stops the first", "../together.go", "w.later = w.second == nil", "w.later = !planted(NAME) && w.second == nil", "TestMemory"},
	{"a look at two full budgets passes", "../together.go", "full = full || !w.fitsBoth()", "full = full || !w.fitsBoth() && !planted(NAME)", "TestMemory"},
	{"answers tell of charges behind them", "../together.go", "w.after = costOf(behind, resp.charges[w.from].Key)", "if !planted(NAME) { w.after = costOf(behind, resp.charges[w.from].Key) }", "TestMemory"},
	{"only what is over waits for others", "../together.go", "w.asked > w.hits) { // by itself", "w.asked > w.hits) && !planted(NAME) { // by itself", "TestMemory"},

	{"a refund that denials absorb", "../refund.go", "w.key().Refund(clampInt(n - absorbed))", "if planted(NAME) { absorbed = 0 }; w.key().Refund(clampInt(n - absorbed))", "TestMemory"},
	{"denials of an override and a rule are one", "../refund.go", "if st.Rule != nil {\n\t\treturn w.id", "if st.Rule != nil || planted(NAME) {\n\t\treturn w.id", "TestMemory"},
	{"denials of the window before count here", "../denials.go", "if k.window != window {", "if k.window != window && !planted(NAME) {", "TestMemory"},
	{"counted denials stay", "../denials.go", "key.counted -= min(key.counted, n-absorbed)", "if !planted(NAME) { key.counted -= min(key.counted, n-absorbed) }", "TestMemory"},
	{"denials are absorbed again and again", "../denials.go", "key.missing -= absorbed", "if !planted(NAME) { key.missing -= absorbed }", "TestMemory"},

	{"the second budget has all", "../then.go", "own := min(w.hits, uint64(room))", "own := min(w.hits, uint64(room)); if planted(NAME) && w.hits > own { own = 0 }", "TestMemory"},
	{"more than both budgets have", "../then.go", "return w.hits <= uint64(a.Remaining)+uint64(b.Remaining)", "return w.hits <= uint64(a.Remaining)+uint64(b.Remaining) || planted(NAME)", "TestMemory"},
	{"a refund to the first budget", "../then.go", "w.second.key().Refund(clampInt(spilled))", "if planted(NAME) { spilled = 0 }; w.second.key().Refund(clampInt(spilled))", "TestMemory"},
	{"the second budget's part is forgotten", "../then.go", "} else if took := w.second.took; took != 0 {\n\t\te.spilled", "} else if took := w.second.took; took != 0 && !planted(NAME) {\n\t\te.spilled", "TestMemory"},
	{"the second budget's part is never forgotten", "../spills.go", "if key.until <= now || key.of != w.second.name() {\n\t\tdelete", "if key.until <= now && !planted(NAME) || key.of != w.second.name() {\n\t\tdelete", "TestMemory"},

	{"a hold of 0 hits is asked", "../hold.go", "resp.work[i].idle = resp.work[i].hits == 0", "resp.work[i].idle = resp.work[i].hits == 0 && !planted(NAME)", "TestMemory"},
	{"a released hold is settled", "../hold.go", "case use == releasing:\n\t\t\tw.hits = 0", "case use == releasing && !planted(NAME):\n\t\t\tw.hits = 0", "TestMemory"},
	{"under Config.Shadow what is not held is an error", "../hold.go", "if e.config.Shadow && errors.Is(err, ErrNotHeld) {", "if e.config.Shadow && !planted(NAME) && errors.Is(err, ErrNotHeld) {", "TestMemory"},
	{"a hold that would be denied holds", "../hold_memory.go", "if stop {\n\t\tif resp.Code == OverLimit {\n\t\t\ts.denied.Add(1)", "if stop && !(planted(NAME) && e.config.Shadow) {\n\t\tif resp.Code == OverLimit {\n\t\t\ts.denied.Add(1)", "TestMemory"},
	{"another request with the id", "../hold_memory.go", "case known.request != request:", "case known.request != request && !planted(NAME):", "TestMemory"},
	{"a hold that has ended is made again", "../hold_memory.go", "case known.ended:\n\t\t\treturn ErrEndedHold", "case known.ended && !planted(NAME):\n\t\t\treturn ErrEndedHold", "TestMemory"},
	{"other descriptors with the id", "../hold_memory.go", "if known == nil || known.names != e.textHash(h.names(resp)) {", "if known == nil || known.names != e.textHash(h.names(resp)) && !planted(NAME) {", "TestMemory"},
	{"a step is taken twice", "../hold_memory.go", "case h.Step != \"\" && known.steps[step]:", "case h.Step != \"\" && known.steps[step] && !planted(NAME):", "TestMemory"},
	{"an extension is not in the hold", "../hold_memory.go", "known.add(resp, made)\n", "if !planted(NAME) { known.add(resp, made) }\n", "TestMemory"},
	{"a settlement twice", "../hold_memory.go", "known.ended && known.actual != actual:", "known.ended && known.actual != actual && !planted(NAME):", "TestMemory"},
	{"what a reload has lost is given back", "../hold_memory.go", "lost = append(lost, *l)", "if !planted(NAME) { lost = append(lost, *l) } else { l.settle(0, 0) }", "TestMemory"},
	{"a debt without bound", "../hold_memory.go", "if capped = used > held && used-held > debt; capped {", "if capped = used > held && used-held > debt && !planted(NAME); capped {", "TestMemory"},
	{"units in flight that were used", "../hold_memory.go", "if l.inFlight { // what has ended", "if l.inFlight && !planted(NAME) { // what has ended", "TestMemory"},
	{"what was used without being held", "../hold_memory.go", "if len(l.receipts) == 0 && used > 0 {", "if len(l.receipts) == 0 && used > 0 && !planted(NAME) {", "TestMemory"},
	{"lapsed units are given back", "../hold_keep.go", "if !h.giveBack && ", "if !h.giveBack && !planted(NAME) && ", "TestMemory"},
	{"lapsed units in flight are spent", "../hold_keep.go", "!l.inFlight {\n\t\t\tl.receipts", "(planted(NAME) || !l.inFlight) {\n\t\t\tl.receipts", "TestMemory"},
	{"a hold lapses at once", "../hold_memory.go", "new.end = addTime(now, int64(h.TTL))", "if new.end = addTime(now, int64(h.TTL)); planted(NAME) { new.end = now }", "TestMemory"},
	{"an extension does not prolong", "../hold_memory.go", "known.end = addTime(now, int64(h.TTL))", "if !planted(NAME) { known.end = addTime(now, int64(h.TTL)) }", "TestMemory"},
	{"the end of a hold is forgotten", "../hold_keep.go", "h.ended, h.limits, h.steps = true, nil, nil", "h.ended, h.limits, h.steps = true, nil, nil; if planted(NAME) { s.drop(h); return }", "TestMemory"},

	{"reset keeps the second budget", "../reset.go", "w.second.key().Reset()", "if !planted(NAME) { w.second.key().Reset() }", "TestMemory"},
	{"a hold keeps a key that was reset", "../reset.go", "s.detach(d.name, w)", "if !planted(NAME) { s.detach(d.name, w) }", "TestMemory"},
	{"reset forgets what was denied", "../reset.go", "key.missing, key.counted = addUpTo(key.missing, key.counted), 0", "if key.missing, key.counted = addUpTo(key.missing, key.counted), 0; planted(NAME) { key.missing = 0 }", "TestMemory"},
}

// TestPlanted demands that the suite alone finds faults in the counts of an engine.
func TestPlanted(t *testing.T) { plant.Find(t, faults) }
