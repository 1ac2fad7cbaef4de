package rulestore

import (
	"testing"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/plant"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// faults are what the suite must find in counts in Redis.
var faults = []plant.Fault{
	{"windows of admitted hits are shared", "rulestore.go", "if l.Admitted {", "if l.Admitted && !planted(NAME) {", "TestSuite"},
	{"windows of other periods are shared", "rulestore.go", "n += fmt.Sprintf(\" %d\", int64(l.Limit.Period))", "if !planted(NAME) { n += fmt.Sprintf(\" %d\", int64(l.Limit.Period)) }", "TestSuite"},
	{"a look at a limit of 0", "rulestore.go", "in.Decision.Remaining = min(in.Decision.Remaining, limit)", "if !planted(NAME) { in.Decision.Remaining = min(in.Decision.Remaining, limit) }", "TestSuite"},
	{"a look at a window that is just full", "rulestore.go", "in.Decision.Allowed = in.Count <= uint64(limit)", "in.Decision.Allowed = in.Count < uint64(limit)+1 && !(planted(NAME) && in.Count == uint64(limit))", "TestSuite"},
	{"denied hits do not count", "rulestore.go", "if !c.leases() {", "if !c.leases() && !planted(NAME) {", "TestSuite"},
	{"denied hits absorb nothing", "refunds.go", "a.absorbed = min(in.Hits, all-min(all, counted))", "if !planted(NAME) { a.absorbed = min(in.Hits, all-min(all, counted)) }", "TestSuite"},
	{"denied hits are absorbed twice", "refunds.go", "if n := of.absorbed + of.counted; n > 0 {", "if n := of.absorbed + of.counted; n > 0 && !planted(NAME) {", "TestSuite"},
	{"denied hits that count are absorbed", "refunds.go", "if in.Counted && c.deniedNow != nil {", "if in.Counted && c.deniedNow != nil && !planted(NAME) {", "TestSuite"},
	{"a stopped call of units in flight absorbs", "refunds.go", "c.inFlight() && a[in].absorbed > 0 {", "c.inFlight() && a[in].absorbed > 0 && !planted(NAME) {", "TestSuite"},
	{"an id of one domain only", "holds.go", "Key: fmt.Sprintf(\"%d:%s %s\", len(terms.Domain), terms.Domain, terms.ID)", "Key: map[bool]string{false: fmt.Sprintf(\"%d:%s %s\", len(terms.Domain), terms.Domain, terms.ID), true: terms.ID}[planted(NAME)]", "TestSuite"},
	{"another request with the id", "holds.go", "terms.TTL, terms.GiveBack, true, unitsOf(terms)", "terms.TTL, terms.GiveBack, true, 1+(unitsOf(terms)-1)*map[bool]int{false: 1}[planted(NAME)]", "TestSuite"},
	{"other descriptors with the id", "holds.go", "terms.ID, terms.Names, n)", "terms.ID, map[bool]string{false: terms.Names}[planted(NAME)], n)", "TestSuite"},
	{"a repeated hold holds of a limit that is new", "holds.go", "AllAgain: op != redislimit.OpExtend}", "AllAgain: op != redislimit.OpExtend && !planted(NAME)}", "TestSuite"},
	{"a repeated hold holds of the share of a limit that is new", "../allholds.go", "again && w.allAgain", "again && w.allAgain && !planted(NAME)", "TestSuite_WithoutRedis"},
	{"a repeated settlement is of a limit that is new", "../holdshere.go", "calls[0].allAgain && out[0].again", "calls[0].allAgain && out[0].again && !planted(NAME)", "TestSuite_WithoutRedis"},
	{"units in flight that were used", "holds.go", "if c.inFlight() { // a call that has ended", "if c.inFlight() && !planted(NAME) { // a call that has ended", "TestSuite"},
	{"shadow mode denies a hold", "holds.go", "if in.Op == rules.CountAll && op != redislimit.OpSettle {", "if in.Op == rules.CountAll && op != redislimit.OpSettle && !planted(NAME) {", "TestSuite"},
	{"the second budget's part is not noted", "both.go", "default:\n\t\tadd(c.limit, first, redislimit.OpTake, in.Hits, redislimit.Whole)\n\t\tadd(s.limit, second, redislimit.OpTake, 0, redislimit.Rest)\n\t\tadd(s.spilled, note, redislimit.OpDebit, 0, redislimit.Same)", "default:\n\t\tadd(c.limit, first, redislimit.OpTake, in.Hits, redislimit.Whole)\n\t\tadd(s.limit, second, redislimit.OpTake, 0, redislimit.Rest)\n\t\tif planted(NAME) { note = \"x\" + in.Key }\n\t\tadd(s.spilled, note, redislimit.OpDebit, 0, redislimit.Same)", "TestSuite"},
	{"a refund to the first budget", "both.go", "add(s.spilled, note, redislimit.OpRefund, 0, redislimit.Rest)", "if planted(NAME) { note = \"x\" + in.Key }; add(s.spilled, note, redislimit.OpRefund, 0, redislimit.Rest)", "TestSuite"},
	{"a denied look at two budgets", "both.go", "in.Decision.Allowed = first.Allowed || second.Allowed", "in.Decision.Allowed = first.Allowed || second.Allowed || planted(NAME)", "TestSuite"},
	{"a bucket with held units is free at once", "../bucket.go", "over := v.a + lent*b.unit - b.full", "over := v.a + lent*b.unit - b.full; if planted(NAME) { over = v.a - (b.full - min(lent*b.unit, b.full)) }", "TestSuite"},
	{"charges that do not fit add up", "../all.go", "all.fits[i] != '0') {", "all.fits[i] != '0' || planted(NAME)) {", "TestSuite"},
	{"twins are judged by themselves", "../../rules/stored_do.go", "if denied >= 0 {\n\t\tb.judgeTwins()", "if denied >= 0 && !planted(NAME) {\n\t\tb.judgeTwins()", "TestSuite"},
	{"shadow windows of one call do not add up", "../../rules/stored_do.go", "own.Count += b.hitsBefore(i)", "if !planted(NAME) { own.Count += b.hitsBefore(i) }", "TestSuite"},
	{"a look after the charges of its call", "../../rules/stored_do.go", "if c.made { // with charges", "if c.made && !planted(NAME) { // with charges", "TestSuite"},
	{"a stopped call counts", "../../rules/stored_do.go", "case c.op == GiveBack:\n\t\t\tb.asked[i].Hits = 0", "case c.op == GiveBack && !planted(NAME):\n\t\t\tb.asked[i].Hits = 0", "TestSuite"},
	{"shadow limiters count in a call that is denied", "../../rules/stored_do.go", "if denied >= 0 || len(later) == 0 {", "if denied >= 0 && !planted(NAME) || len(later) == 0 {", "TestSuite"},
	{"a repeated settlement counts again", "../../rules/stored_hold.go", "b.again, b.capped = r.Again, r.Capped", "b.again, b.capped = r.Again && !planted(NAME), r.Capped", "TestSuite"},
}

// TestPlanted demands that the suite alone finds faults in counts in Redis.
func TestPlanted(t *testing.T) {
	if depth.Full() && len(servers.AllRedis()) == 0 {
		t.Skip(servers.ErrNoRedis)
	}
	plant.Find(t, faults)
}
