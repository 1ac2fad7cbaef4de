package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/guard"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// command runs a command line as main does.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestRun_AskingForWhatThereIsNot(t *testing.T) {
	for want, args := range map[string][]string{
		`--only "nobody" matches no subject`:                                    {"--only", "nobody"},
		`--only: error parsing regexp`:                                          {"--only", "("},
		`--workloads: there is no "warm", only hot, thousand, zipf`:             {"--quick", "--workloads", "hot,warm"},
		`--parts: there is no "sped", only memory, curve, allocs, stall, tails`: {"--quick", "--parts", "sped"},
		`--rounds 0: want 1 or more`:                                            {"--quick", "--rounds", "0"},
		`a part of a run does not replace the published results`:                {"--quick", "--out", "./results"},
		`results: a part of a run does not replace the published`:               {"--quick", "--out", "../benchmarks/results"},
		`unknown flag: --fast`:                                                  {"--fast"},
		`unknown command "all"`:                                                 {"all"},
	} {
		code, stdout, stderr := command(t, args...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, stderr, want)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
		assert.Empty(t, stdout)
	}
}

// A complete run whose end could not be written must fail before it begins.
func TestRun_CompleteRunOutsideOfItsFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	code, _, stderr := command(t)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "run it in the folder benchmarks")
}

func TestRun_Interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"--quick", "--out", t.TempDir()}, &stdout, &stderr)
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "benchmarks: context canceled\n", stderr.String())
}

func TestRun_QuickWritesEverythingButTheReadmes(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "folder")
	code, stdout, stderr := command(t, "--quick", "--rounds", "1", "--only", `^(sluice GCRA|sluice GCRA, fast clock|throttled)$`, "--out", out)
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, stdout, "budgets: ")
	var r results.Results
	err := results.Load(filepath.Join(out, results.File), &r)
	require.NoError(t, err)
	require.Len(t, r.Subjects, 3)
	assert.Equal(t, 1, r.Machine.Rounds)
	assert.NotEmpty(t, r.Speed)
	assert.NotEmpty(t, r.Scaling)
	assert.Len(t, r.Memory, 3)
	assert.NotEmpty(t, r.Allocs)
	assert.NotEmpty(t, r.Stall)
	assert.NotEmpty(t, r.Curve)
	assert.NotEmpty(t, r.Full)
	assert.NotEmpty(t, r.Tails)
	assert.NotEmpty(t, r.Machine.FastClock)
	require.NotEmpty(t, r.Floor)
	assert.Len(t, r.Floor[0].Samples, 2*floorRounds, "before the calls and after")
	assert.NotEmpty(t, r.Omitted)
	text, err := os.ReadFile(filepath.Join(out, "results.txt"))
	require.NoError(t, err)
	for _, module := range peers.Absent {
		assert.Contains(t, string(text), module, "what is missing is said")
	}
	for _, file := range []string{"results.txt", "speed.svg", "keys.svg", "cores.svg", "memory.svg", "curve.svg", "stall.svg", "tails.svg"} {
		assert.FileExists(t, filepath.Join(out, file))
	}
	for _, part := range partNames() {
		assert.Contains(t, stderr, "s  "+part+"\n", "progress")
	}
}

func TestTails_AreLeftOutWhereThereIsTooLittleMemory(t *testing.T) {
	p := plan{rounds: 1, quick: true, parts: []string{"tails"}, only: "^sluice GCRA$"}
	var lines []string
	m, err := p.resolve(func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) })
	require.NoError(t, err)
	m.available = func() int64 { return m.sizes.tails.Needs() - 1 }
	r, err := m.run(t.Context())
	require.NoError(t, err)
	assert.Empty(t, r.Tails)
	assert.Contains(t, strings.Join(lines, "\n"), "tails: left out: they take 1 MB of memory")
	assert.Contains(t, r.Omitted[len(r.Omitted)-1].Reason, "MB of memory")

	m.available = m.sizes.tails.Needs
	r, err = m.run(t.Context())
	require.NoError(t, err)
	assert.Len(t, r.Tails, 5, "the log is not asked for")
}

func TestRun_PartsAndWorkloads(t *testing.T) {
	out := t.TempDir()
	code, _, stderr := command(t, "--quick", "--rounds", "1", "--only", `^sluice GCRA$`, "--workloads", "denied", "--parts", "speed", "--out", out)
	require.Equal(t, exitOK, code, stderr)
	var r results.Results
	err := results.Load(filepath.Join(out, results.File), &r)
	require.NoError(t, err)
	assert.Empty(t, r.Memory)
	require.NotEmpty(t, r.Speed)
	for _, s := range r.Speed {
		assert.Equal(t, "denied", s.Workload)
	}
}

func TestVerdict_ALineForEachBoundThatIsBroken(t *testing.T) {
	row := func(ratio float64) guard.Row {
		return guard.Row{Bound: guard.Bound{Subject: "s", Baseline: "b", Workload: "hot", Most: 0.5}, Ratio: ratio}
	}
	var stdout, stderr bytes.Buffer
	assert.NoError(t, verdict(&stdout, &stderr, []guard.Row{row(0.4), row(0.5)}))
	assert.Empty(t, stderr.String())
	assert.Equal(t, 2, strings.Count(stdout.String(), "\n"))

	err := verdict(&stdout, &stderr, []guard.Row{row(0.6), row(0.4), row(0.7)})
	assert.ErrorIs(t, err, errSilent)
	assert.ErrorAs(t, err, new(failure), "it is not the command line that is wrong")
	assert.Equal(t, 2, strings.Count(stderr.String(), "\n"), stderr.String())
	assert.Contains(t, stderr.String(), "benchmarks guard: too slow: s ")
	assert.Contains(t, stderr.String(), "0.70 of the time of b, at most 0.50")
}

func TestGuard_CommandLine(t *testing.T) {
	code, _, stderr := command(t, "guard", "fast")
	assert.Equal(t, exitUsage, code)
	assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, errs bytes.Buffer
	assert.Equal(t, exitFailed, run(ctx, []string{"guard"}, &stdout, &errs))
	assert.Equal(t, "benchmarks guard: context canceled\n", errs.String())
}

const page = "# title\n<!-- benchmarks:begin -->\n<!-- benchmarks:end -->\nend\n"

// benchmarksFolder is a place that looks like this module in its clone.
func benchmarksFolder(t *testing.T) {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "README.md"), []byte(page), 0o644))
	folder := filepath.Join(root, "benchmarks")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "README.md"), []byte(page), 0o644))
	t.Chdir(folder)
}

func TestReport_RewritesThePublishedResultsAndTheReadmes(t *testing.T) {
	benchmarksFolder(t)
	require.NoError(t, checkPages())
	r := results.Results{
		Machine:  results.Machine{Commit: "abc1234"},
		Subjects: []results.Subject{{Name: "sluice GCRA", Kind: "ours", Clock: "system"}},
		Speed:    []results.Speed{{Subject: "sluice GCRA", Workload: "hot", Mode: "serial", Samples: []float64{57}}},
	}
	require.NoError(t, os.Mkdir(published, 0o755))
	require.NoError(t, results.Save(filepath.Join(published, results.File), r))
	require.NoError(t, os.WriteFile(redisFile, []byte(`{"Machine": {"Commit": "def5678"}, "Redis": "7.0"}`), 0o644))
	require.NoError(t, os.Mkdir(filepath.Dir(redisPage), 0o755))
	require.NoError(t, os.WriteFile(redisPage, []byte("<!-- redis:begin -->\n<!-- redis:end -->\n"), 0o644))
	require.NoError(t, os.WriteFile(promisesFile, []byte(`{"Machine": {"Commit": "fed8765"}, "Results": [{"Subject": "some limiter"}]}`), 0o644))
	require.NoError(t, os.WriteFile("README.md", []byte(page+"<!-- promises:begin -->\n<!-- promises:end -->\n"), 0o644))
	code, stdout, stderr := command(t, "report")
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, stdout, "not measured")
	text, err := os.ReadFile(promisesPage)
	require.NoError(t, err)
	assert.Contains(t, string(text), "fed8765")
	assert.Contains(t, string(text), "| some limiter | - |")
	for path, want := range map[string]string{
		"../README.md": "**57**", "results/results.txt": "abc1234", "results/speed.svg": "<svg",
		redisTable: "def5678", redisPage: "Redis 7.0",
	} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Contains(t, string(text), want, path)
	}
}

func TestReport_Errors(t *testing.T) {
	benchmarksFolder(t)
	code, _, stderr := command(t, "report")
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "benchmarks report: open results/results.json: no such file or directory\n", stderr)

	require.NoError(t, os.Mkdir(published, 0o755))
	require.NoError(t, results.Save(filepath.Join(published, results.File), results.Results{}))
	require.NoError(t, os.WriteFile("../README.md", []byte("no markers"), 0o644))
	code, _, stderr = command(t, "report")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, `README.md: no section between one line "<!-- benchmarks:begin -->"`)
	assert.Error(t, checkPages())
}
