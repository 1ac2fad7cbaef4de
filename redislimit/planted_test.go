package redislimit

import (
	"testing"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/plant"
)

var faults = []plant.Fault{
	{"memory of denials without cost", "core.go", "int64(cost) < e.cost", "int64(cost) < e.cost && !planted(NAME)", "TestTier_Memory"},
	{"client tries again", "call.go", "NoRetry() bool { return true }", "NoRetry() bool { return !planted(NAME) }", "TestOnce"},
	{"share not charged before", "core.go", "s.share(t.plan).TakeUpTo(t.cost)", "if !planted(NAME) { s.share(t.plan).TakeUpTo(t.cost) }", "TestFault_Foreign_Warm"},
	{"rank ignored", "core.go", "rank < r.admitted", "rank < r.admitted || planted(NAME) && r.admitted > 0", "TestTier_Coalesces"},
	{"who has left is charged", "batch.go", "if !w.gone && !w.leased {\n\t\t\tw.rank", "if (!w.gone || planted(NAME)) && !w.leased {\n\t\t\tw.rank", "TestTier_FirstComeFirstServed"},
	{"late reply dropped", "batch.go", "if g.loan != nil {\n\t\tl.leased", "if g.loan != nil && !(planted(NAME) && g.state == groupLate) {\n\t\tl.leased", "TestLease_Late"},
	{"nothing left of the budget", "tierconfig.go", "return c.Budget - min(", "if planted(NAME) { return c.Budget }; return c.Budget - min(", "TestTier_Budget"},
	{"lease spent after its end", "lease.go", "now >= h.ends", "now >= h.ends && !planted(NAME)", "TestLease_WindowEnds"},
	{"lease settled twice", "lease.go", "h.spent, h.told = 0, 0\n\treturn s", "if h.told = 0; !planted(NAME) { h.spent = 0 }\n\treturn s", "TestLease_Adversaries"},
	{"leader sends again", "lead.go", "&s.request, s.now)\n", "&s.request, s.now)\n\tif planted(NAME) && s.err != nil { s.reply, s.err = l.core.link.runAt(context.Background(), l.client, &s.request, s.now) }\n", "TestLead_Unanswered"},
	{"leader keeps a connection that has failed", "lead.go", "stop() && (s.err == nil || errors.Is(s.err, ErrForeignValue)) && !g.direct.off", "stop() && (planted(NAME) || (s.err == nil || errors.Is(s.err, ErrForeignValue)) && !g.direct.off)", "TestLead_Unanswered"},
	{"leader's context ignored", "lead.go", "if ctx.Done() != nil", "if ctx.Done() != nil && !planted(NAME)", "TestLead_Cancelled"},
	{"leader's leaving a failure", "batch.go", "if s.err != errLeft", "if s.err != errLeft || planted(NAME)", "TestLead_Cancelled"},
	{"leader's lease not settled", "lead.go", "if l.closed && len(l.settling) > 0", "if l.closed && len(l.settling) > 0 && !planted(NAME)", "TestLead_CloseLease"},
	{"reply after a cancellation trusted", "lead.go", "stop() && (", "(stop() || planted(NAME)) && (", "TestLead_LateCancel"},
	{"ended connection used", "client.go", "== nil && d.quiet", "== nil && (d.quiet || planted(NAME))", "TestLead_Stale"},
	{"leader does not hand on", "lead.go", "l.senders--\n\t\tl.send()", "l.senders--\n\t\tif !planted(NAME) { l.send() }", "TestLead_HandsOn"},
	{"nobody keeps to the share on return", "share.go", "c.returning.Load() == 0 ||", "c.returning.Load() == 0 || planted(NAME) ||", "TestReturn_Share"},
	{"share not given back", "share.go", "t.within = false\n", "if t.within = false; planted(NAME) { return }\n", "TestReturn_Share"},
	{"failures one after another ignored", "breaker.go", "b.run < breakerRun && (", "(b.run < breakerRun || planted(NAME)) && (", "TestBreaker_Run"},
	{"what is owed rests after an outage", "probe.go", "l.owedFrom = time.Time{}", "if !planted(NAME) { l.owedFrom = time.Time{} } else { l.owedFrom = now.Add(time.Hour) }", "TestOwed_Probe"},
	{"probes wait for calls", "probe.go", "if l.probes < maxProbes {", "if l.probes < maxProbes && !planted(NAME) {", "TestLane_Open"},
	{"a tag in a key", "call.go", "strings.IndexByte(key, '{') < 0 ||", "strings.IndexByte(key, '{') < 0 || planted(NAME) ||", "TestKeys_Slots"},
	{"more than a reply read", "client.go", "d.off = d.heard.bytes-before != replySize(cmd)", "d.off = d.heard.bytes-before != replySize(cmd) && !planted(NAME)", "TestLead_Glued"},
	{"settlement ignored", "lease.go", "s.since, s.epoch, s.unused = h.since, h.terms.epoch, h.left", "if !planted(NAME) { s.since, s.epoch, s.unused = h.since, h.terms.epoch, h.left }", "TestLease_Close"},
}

// TestPlanted_Go demands that the tests of the package find faults in it.
func TestPlanted_Go(t *testing.T) {
	if depth.Full() {
		anyServer(t)
	}
	plant.Find(t, faults)
}
