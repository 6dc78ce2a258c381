// Command pack turns freshly built helper programs into the compressed assets
// that the balsa binary embeds: pack DIR-WITH-PROGRAMS ASSETS-DIR.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
)

// programs are laid out on every node's disk.
var programs = []string{"runc", "containerd-shim-runc-v2", "bridge", "host-local", "loopback", "bandwidth"}

// links are the names under which the hello image offers its one program.
var links = []string{"sh", "get", "curl", "wget", "tar", "hostname", "env", "sleep", "nslookup",
	"cat", "ls", "cp", "mv", "rm", "mkdir", "touch", "find", "chmod"}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack PROGRAMS-DIR ASSETS-DIR")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(from, to string) error {
	var manifest bytes.Buffer
	for _, p := range programs {
		data, err := os.ReadFile(filepath.Join(from, p))
		if err != nil {
			return err
		}
		if err := store(&manifest, to, "bin/"+p, data); err != nil {
			return err
		}
	}
	images, err := imageArchive(from)
	if err != nil {
		return err
	}
	if err := store(&manifest, to, "images/carried.tar", images); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "MANIFEST"), manifest.Bytes(), 0o644)
}

// store writes one compressed asset and its line in the manifest: the SHA-256
// of the uncompressed bytes, the name.
func store(manifest io.Writer, dir, asset string, data []byte) error {
	path := filepath.Join(dir, asset+".zst")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return err
	}
	fmt.Fprintf(manifest, "%x %s\n", sha256.Sum256(data), asset)
	return os.WriteFile(path, enc.EncodeAll(data, nil), 0o644)
}

// imageArchive makes a docker archive of the pause image and of hello in two
// versions that differ in one variable only, so that a rolling update shows.
func imageArchive(from string) ([]byte, error) {
	pause, err := image(from, "pause", nil, v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"})
	if err != nil {
		return nil, err
	}
	repository, err := name.NewRepository("docker.io/balsahq/hello")
	if err != nil {
		return nil, err
	}
	pauseTag, err := name.NewTag("docker.io/balsahq/pause:1")
	if err != nil {
		return nil, err
	}
	tagged := map[name.Tag]v1.Image{pauseTag: pause}
	for _, version := range []string{"1", "2"} {
		hello, err := image(from, "hello", links, v1.Config{
			Entrypoint:   []string{"/bin/hello"},
			Env:          []string{"PATH=/bin", "VERSION=" + version},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		})
		if err != nil {
			return nil, err
		}
		tagged[repository.Tag(version)] = hello
	}
	var out bytes.Buffer
	if err := tarball.MultiWrite(tagged, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// image is one layer with the program, at / or, with links, at /bin.
func image(from, program string, links []string, config v1.Config) (v1.Image, error) {
	data, err := os.ReadFile(filepath.Join(from, program))
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	dir := ""
	if len(links) > 0 {
		dir = "bin/"
		for _, d := range []tar.Header{{Name: "bin/", Mode: 0o755}, {Name: "etc/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777}} {
			d.Typeflag = tar.TypeDir
			if err := w.WriteHeader(&d); err != nil {
				return nil, err
			}
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: dir + program, Mode: 0o755, Size: int64(len(data))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	for _, l := range links {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: dir + l, Linkname: program}); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(img, file)
}
