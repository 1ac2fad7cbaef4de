// Package plant builds a package's tests with faults in the code, and demands that the tests find each of them. Only tests use it.
package plant

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/depth"
)

// A Fault is a text of a file, what takes its place, with planted(NAME) in it, and the test that finds the fault. File is seen from
// the folder of the test.
type Fault = struct{ Name, File, Old, New, Test string }

// variable is the environment variable that chooses a fault.
const variable = "SLUICE_PLANTED"

// seeds names the random histories that look for the faults. They are the same at every commit: whether the tests find a fault must
// depend on the tests alone.
const seeds = "of:planted faults"

var packageClause = regexp.MustCompile(`(?m)^package (\w+)$`)

// Find builds the tests of the present folder once, with all faults in the code. It runs them with one fault at a time, which the
// environment chooses, and demands that they find it; and without faults, and demands that they pass. It needs SLUICE_DEPTH=full.
func Find(t *testing.T, faults []Fault) {
	t.Helper()
	if !depth.Full() {
		t.Skip("SLUICE_DEPTH=full builds the code with faults in it")
	}
	binary := build(t, faults)
	var tests []string
	for _, f := range faults {
		if !slices.Contains(tests, f.Test) {
			tests = append(tests, f.Test)
		}
		t.Run(f.Name, func(t *testing.T) {
			out, err := run(binary, f.Name, f.Test)
			switch {
			case err == nil:
				t.Error("the fault is not found")
			case !bytes.Contains(out, []byte("--- FAIL: "+f.Test)):
				t.Errorf("it ends in another way: %s", out)
			}
		})
	}
	if out, err := run(binary, "", strings.Join(tests, "|")); err != nil {
		t.Errorf("without a fault: %s", out)
	}
}

// build makes the binary.
func build(t *testing.T, faults []Fault) (binary string) {
	t.Helper()
	sources := map[string]string{}
	for _, f := range faults {
		if sources[f.File] == "" {
			source, err := os.ReadFile(f.File)
			if err != nil {
				t.Fatal(err)
			}
			sources[f.File] = string(source)
			name := packageClause.FindStringSubmatch(string(source))[1]
			sources[filepath.Join(filepath.Dir(f.File), "planted.go")] = fmt.Sprintf("package %s\n\nimport \"os\"\n\nfunc planted(name string) bool { return os.Getenv(%q) == name }\n", name, variable)
		}
		if n := strings.Count(sources[f.File], f.Old); n != 1 {
			t.Fatalf("%s: %s has %d times %s; want it once", f.Name, f.File, n, f.Old)
		}
		sources[f.File] = strings.Replace(sources[f.File], f.Old, strings.ReplaceAll(f.New, "NAME", fmt.Sprintf("%q", f.Name)), 1)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for name, text := range sources {
		real, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		replace[real] = filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		if err := os.WriteFile(replace[real], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "planted.test")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-o", binary, "-overlay", list, ".").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	return binary
}

// run runs tests, for a minute at most: a fault may keep them from ending.
func run(binary, fault, tests string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.short", "-test.run", "^("+tests+")$")
	cmd.Env = append(os.Environ(), variable+"="+fault, "SLUICE_SEED="+seeds)
	return cmd.CombinedOutput()
}
