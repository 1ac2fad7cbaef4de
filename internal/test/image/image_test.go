package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// input is a directory of a platform, with what is no program.
func input(t *testing.T, arch string) string {
	dir := filepath.Join(t.TempDir(), arch)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"sluiced": "program of " + arch, "sbom.cdx.json": "{}", "license": "L", "roots": "R"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// images opens a layout, and checks its digests and sizes.
func images(t *testing.T, dir string) map[string]v1.Image {
	t.Helper()
	index := must[v1.ImageIndex](t)(layout.ImageIndexFromPath(dir))
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	out := map[string]v1.Image{}
	for _, m := range must[*v1.IndexManifest](t)(index.IndexManifest()).Manifests {
		out[m.Platform.Architecture] = must[v1.Image](t)(index.Image(m.Digest))
	}
	return out
}

type entry struct {
	tar.Header
	content []byte
}

func unpack(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	out := map[string]entry{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = entry{*h, must[[]byte](t)(io.ReadAll(tr))}
	}
}

// checkImage: nobody's user, who can write nowhere, and nothing to run but the program.
func checkImage(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	config := must[*v1.ConfigFile](t)(img.ConfigFile()).Config
	if config.User != "65532:65532" || !slices.Equal(config.Entrypoint, []string{"/bin/sluiced"}) || !slices.Equal(config.Cmd, []string{"serve"}) {
		t.Errorf("config %+v", config)
	}
	all := unpack(t, img)
	for name, e := range all {
		if e.Uid != 0 || e.Typeflag != tar.TypeSymlink && e.Mode&0o022 != 0 {
			t.Errorf("%s: owner %d, mode %o", name, e.Uid, e.Mode)
		}
		if e.Mode&0o6000 != 0 || e.Typeflag == tar.TypeReg && e.Mode&0o111 != 0 && name != "bin/sluiced" {
			t.Errorf("%s: mode %o", name, e.Mode)
		}
	}
	if e := all["bin/ratelimit"]; e.Linkname != "sluiced" || all["bin/sluiced"].Mode != 0o755 {
		t.Errorf("bin/ratelimit %+v", e)
	}
	for _, name := range []string{"bin/sluiced", "usr/share/sbom/sluice.cdx.json", "etc/ssl/certs/ca-certificates.crt", "usr/share/doc/sluice/LICENSE"} {
		if len(all[name].content) == 0 {
			t.Errorf("no %s", name)
		}
	}
	return all
}

func TestImage(t *testing.T) {
	amd, arm := input(t, "amd64"), input(t, "arm64")
	c := contents{license: filepath.Join(amd, "license"), authorities: filepath.Join(amd, "roots"), version: "v1"}
	var digests []string
	for range 2 {
		out := t.TempDir()
		if err := c.write(out, []string{amd, arm}); err != nil {
			t.Fatal(err)
		}
		got := images(t, out)
		for arch, img := range got {
			if content := checkImage(t, img)["bin/sluiced"].content; string(content) != "program of "+arch {
				t.Errorf("%s: %s", arch, content)
			}
			digests = append(digests, must[v1.Hash](t)(img.Digest()).String())
		}
		if len(got) != 2 {
			t.Errorf("%d images", len(got))
		}
	}
	slices.Sort(digests)
	if len(slices.Compact(digests)) != 2 {
		t.Errorf("the same files make other images: %v", digests)
	}
}

func TestImage_Refusals(t *testing.T) {
	dir := input(t, "amd64")
	whole := contents{license: filepath.Join(dir, "license"), authorities: filepath.Join(dir, "roots")}
	for _, missing := range []string{"sluiced", "sbom.cdx.json", "license", "roots"} {
		if err := os.Rename(filepath.Join(dir, missing), filepath.Join(dir, "away")); err != nil {
			t.Fatal(err)
		}
		if err := whole.write(t.TempDir(), []string{dir}); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v", missing, err)
		}
		if err := os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, missing)); err != nil {
			t.Fatal(err)
		}
	}
	if err := whole.write("", nil); err == nil {
		t.Error("no directory, and no error")
	}
}

// TestImage_Release looks at the image that `.ci/release image` has made, and runs the program that is in it.
func TestImage_Release(t *testing.T) {
	dir := os.Getenv("SLUICE_IMAGE")
	if dir == "" {
		t.Skip("SLUICE_IMAGE names no image: .ci/release image DIR makes one")
	}
	for arch, img := range images(t, dir) {
		all := checkImage(t, img)
		var sbom struct {
			BOMFormat  string
			Components []struct{ Name string }
		}
		if err := json.Unmarshal(all["usr/share/sbom/sluice.cdx.json"].content, &sbom); err != nil || sbom.BOMFormat != "CycloneDX" {
			t.Errorf("%s: the SBOM: %v %v", arch, sbom.BOMFormat, err)
		}
		for _, want := range []string{"google.golang.org/grpc", "github.com/redis/go-redis/v9"} {
			if !slices.ContainsFunc(sbom.Components, func(c struct{ Name string }) bool { return c.Name == want }) {
				t.Errorf("%s: the SBOM has no %s", arch, want)
			}
		}
		if bytes.Contains(all["bin/sluiced"].content, []byte("/ld-linux")) {
			t.Errorf("%s: the program is not static", arch)
		}
		if arch != runtime.GOARCH {
			continue
		}
		root := t.TempDir()
		program := filepath.Join(root, "sluiced")
		if err := os.WriteFile(program, all["bin/sluiced"].content, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(all["bin/ratelimit"].Linkname, filepath.Join(root, "ratelimit")); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "version")
		cmd.Env = []string{}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "sluiced ") {
			t.Errorf("%s: %v", out, err)
		}
		cmd = exec.Command(filepath.Join(root, "ratelimit"))
		cmd.Env = []string{"BACKEND_TYPE=memcache"}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "BACKEND_TYPE memcache") {
			t.Errorf("it does not serve under that name: %s %v", out, err)
		}
	}
}
