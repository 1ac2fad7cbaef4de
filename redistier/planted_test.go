package redistier

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlanted_Go builds the package with faults, and demands that its tests find them.
func TestPlanted_Go(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package several times: run it without -short")
	}
	anyServer(t)
	for _, f := range []struct{ name, file, old, new, test string }{
		{"memory of denials without cost", "tier.go", " || int64(cost) < e.cost", "", "TestTier_Memory"},
		{"client tries again", "call.go", "NoRetry() bool { return true }", "NoRetry() bool { return false }", "TestOnce"},
		{"share not charged before", "tier.go", "t.local.TakeUpTo(key, c.cost)", "", "TestFault_Foreign_Warm"},
		{"rank ignored", "tier.go", "rank < r.admitted", "r.admitted > 0", "TestTier_Coalesces"},
		{"who has left is charged", "lane.go", "if !w.gone && !w.leased {\n\t\t\t\tw.rank", "if !w.leased {\n\t\t\t\tw.rank", "TestTier_Context"},
		{"late reply dropped", "lane.go", "if g.hold != nil {\n\t\tl.leased", "if g.hold != nil && !g.ended {\n\t\tl.leased", "TestLease_Late"},
		{"lease spent after its end", "lease.go", " || now >= h.ends", "", "TestLease_WindowEnds"},
	} {
		t.Run(f.name, func(t *testing.T) {
			source, err := os.ReadFile(f.file)
			require.NoError(t, err)
			require.Contains(t, string(source), f.old)
			dir := t.TempDir()
			faulty := filepath.Join(dir, f.file)
			require.NoError(t, os.WriteFile(faulty, []byte(strings.Replace(string(source), f.old, f.new, 1)), 0o600))
			real, err := filepath.Abs(f.file)
			require.NoError(t, err)
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {real: faulty}})
			require.NoError(t, err)
			list := filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(list, overlay, 0o600))
			out, err := exec.Command("go", "test", "-short", "-count=1", "-overlay", list, "-run", "^"+f.test+"$", ".").CombinedOutput()
			require.Error(t, err, "the fault is not found")
			require.Contains(t, string(out), "--- FAIL: "+f.test, "%s", out)
		})
	}
}
