// Command image makes a container image of programs that are there: an OCI layout, without a daemon, a registry or a base image. The
// same programs make the same image, byte for byte.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is nobody in particular, and not root.
const user = 65532

func main() {
	out := flag.String("out", "", "the directory to make")
	license := flag.String("license", "", "the file of the license")
	authorities := flag.String("authorities", "", "the file of the certificates that are trusted, for rediss://")
	version := flag.String("version", "", "the version, for a label")
	flag.Parse()
	c := contents{license: *license, authorities: *authorities, version: *version}
	if err := c.write(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// contents are the files beside the program, and the version of all.
type contents struct{ license, authorities, version string }

// write makes an image of one platform for each directory, whose name is an architecture: it holds sluice, the program, and
// sbom.cdx.json, the list of its parts.
func (c contents) write(out string, dirs []string) error {
	if out == "" || len(dirs) == 0 {
		return errors.New("want -out DIR, and a directory for each architecture, such as build/amd64")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, dir := range dirs {
		arch := filepath.Base(dir)
		img, err := c.platform(dir, arch)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	_, err := layout.Write(out, index)
	return err
}

func (c contents) platform(dir, arch string) (v1.Image, error) {
	layer, err := c.files(dir)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, l); err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", user, user),
		Entrypoint:   []string{"/bin/sluiced"},
		Cmd:          []string{"serve"},
		WorkingDir:   "/",
		Env:          []string{"PATH=/bin"},
		ExposedPorts: map[string]struct{}{"8081/tcp": {}, "8080/tcp": {}, "9090/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":   "sluice",
			"org.opencontainers.image.source":  "https://github.com/sluice-go/sluice",
			"org.opencontainers.image.version": c.version,
		},
	}
	return mutate.ConfigFile(img, file)
}

// files is the root of the image's file system.
func (c contents) files(dir string) ([]byte, error) {
	program, err := os.ReadFile(filepath.Join(dir, "sluiced"))
	if err != nil {
		return nil, err
	}
	sbom, err := os.ReadFile(filepath.Join(dir, "sbom.cdx.json"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(c.license)
	if err != nil {
		return nil, err
	}
	roots, err := os.ReadFile(c.authorities)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := writer{tar: tar.NewWriter(&b), have: map[string]bool{}}
	w.file("bin/sluiced", 0o755, program)
	w.link("bin/ratelimit", "sluiced") // Envoy Gateway starts /bin/ratelimit
	w.file("etc/passwd", 0o644, fmt.Appendf(nil, "nonroot:x:%d:%d::/:/none\n", user, user))
	w.file("etc/group", 0o644, fmt.Appendf(nil, "nonroot:x:%d:\n", user))
	w.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots)
	w.file("usr/share/doc/sluice/LICENSE", 0o644, text)
	w.file("usr/share/sbom/sluice.cdx.json", 0o644, sbom)
	if w.err == nil {
		w.err = w.tar.Close()
	}
	return b.Bytes(), w.err
}

// writer writes a tar whose entries are root's, and of no time.
type writer struct {
	tar  *tar.Writer
	have map[string]bool // directories
	err  error
}

func (w *writer) entry(h tar.Header, content []byte) {
	if dir := path.Dir(strings.TrimSuffix(h.Name, "/")); dir != "." && !w.have[dir] {
		w.have[dir] = true
		w.entry(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	if w.err != nil {
		return
	}
	h.Size, h.ModTime, h.Format = int64(len(content)), time.Unix(0, 0), tar.FormatUSTAR
	if w.err = w.tar.WriteHeader(&h); w.err == nil {
		_, w.err = w.tar.Write(content)
	}
}

func (w *writer) file(name string, mode int64, content []byte) {
	w.entry(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, content)
}

func (w *writer) link(name, to string) {
	w.entry(tar.Header{Name: name, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: to}, nil)
}
