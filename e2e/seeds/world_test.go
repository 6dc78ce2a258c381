package seeds

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"github.com/balsahq/balsa/e2e/host"
)

// patience is how long a row waits for what has to come.
const patience = time.Minute

// world is the cluster that the rows run on.
type world struct {
	*testing.T
	host *host.Host
	dir  string // of files that rows give to kubectl
}

// kubectl runs a command line, with words separated by spaces, that has to succeed.
func (w *world) kubectl(line string) string {
	w.Helper()
	out, err := w.try(line)
	if err != nil {
		w.Fatalf("kubectl %s: %v\n%s", line, err, out)
	}
	return out
}

func (w *world) try(line string) (string, error) { return w.within(patience, line) }

// within runs a command line that is ended after some time.
func (w *world) within(limit time.Duration, line string) (string, error) {
	ctx, cancel := context.WithTimeout(w.Context(), limit)
	defer cancel()
	cmd := w.host.KubectlCommand(ctx, strings.Fields(line)...)
	cmd.Dir = w.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// refused runs a command line that has to fail with text in its output.
func (w *world) refused(line, text string) {
	w.Helper()
	if out, err := w.try(line); err == nil || !strings.Contains(out, text) {
		w.Errorf("kubectl %s: %v, want a refusal with %q\n%s", line, err, text, out)
	}
}

// says runs a command line until its output contains every text.
func (w *world) says(line string, texts ...string) string {
	w.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := w.try(line)
		missing := err != nil
		for _, text := range texts {
			missing = missing || !strings.Contains(out, text)
		}
		if !missing {
			return out
		}
		select {
		case <-tick.C:
		case <-deadline:
			w.Fatalf("kubectl %s: no %q in\n%s", line, texts, out)
		}
	}
}

// file writes a file that a command names, and returns its name.
func (w *world) file(name, text string) string {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return name
}

// apply applies a manifest.
func (w *world) apply(manifest string) string {
	w.Helper()
	return w.kubectl("apply -f " + w.file("config.yaml", manifest))
}

// ready waits until a pod is ready.
func (w *world) ready(pods ...string) {
	w.Helper()
	for _, p := range pods {
		w.says("get pod "+p+" -o jsonpath={.status.conditions[?(@.type==\"Ready\")].status}", "True")
	}
}

// gone deletes things at once.
func (w *world) gone(what string) {
	w.Helper()
	w.kubectl("delete --now --wait=false --ignore-not-found " + what)
}

// images are the names of the documents' images, made from the image inside the binary: what differs is what they run, and
// that nginx has its directory and its program.
var images = []struct {
	name   string
	config v1.Config
}{
	{"nginx:latest", nginx}, {"nginx:1.9.1", nginx}, {"nginx:1.7.9", nginx},
	{"busybox:latest", v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}},
	{"debian:latest", v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}}},
}

var nginx = v1.Config{Env: []string{"PATH=/bin", "PORT=80", "DRAIN_DELAY=0s", "VERSION=1"}, Entrypoint: []string{"/bin/hello"}}

// layout is what nginx has beside the programs of the carried image.
func layout() (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []string{"usr/", "usr/share/", "usr/share/nginx/", "usr/share/nginx/html/", "usr/sbin/"} {
		if err := w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	script := []byte("#!/bin/sh\necho nginx $* > /tmp/nginx\n")
	err := w.WriteHeader(&tar.Header{Name: "usr/sbin/nginx", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(script))})
	if err == nil {
		_, err = w.Write(script)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}

// registryAddress is where the host's registry listens.
const registryAddress = "127.0.0.1:5000"

// mirror says that images of docker.io come from that registry.
const mirror = "[host.\"http://" + registryAddress + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n"

// serveImages runs a registry on the host that has the images, and makes it the mirror of docker.io.
func (w *world) serveImages() {
	w.Helper()
	must := func(err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	listener, err := w.host.Listen("tcp", registryAddress)
	must(err)
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	go func() { _ = server.Serve(listener) }()
	w.Cleanup(func() { server.Close() })
	raw, err := os.ReadFile("../../node/runtime/assets/images/carried.tar.zst")
	must(err)
	dec, err := zstd.NewReader(nil)
	must(err)
	defer dec.Close()
	plain, err := dec.DecodeAll(raw, nil)
	must(err)
	w.file("carried.tar", string(plain))
	carried, err := name.NewTag("docker.io/balsahq/hello:1")
	must(err)
	base, err := tarball.ImageFromPath(filepath.Join(w.dir, "carried.tar"), &carried)
	must(err)
	more, err := layout()
	must(err)
	base, err = mutate.AppendLayers(base, more)
	must(err)
	for _, i := range images {
		img, err := mutate.Config(base, i.config)
		must(err)
		ref, err := name.ParseReference(registryAddress+"/library/"+i.name, name.Insecure)
		must(err)
		must(remote.Write(ref, img, remote.WithTransport(&http.Transport{DialContext: w.host.Dial})))
	}
	dir := filepath.Join(w.host.DataDir, "agent", "registries", "docker.io")
	must(os.MkdirAll(dir, 0o755))
	must(os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(mirror), 0o600))
}

// files of the server's flags.
const (
	tokens    = "a-token,token-user,1,\"system:masters\"\n"
	passwords = "a-password,password-user,2,\"system:masters\"\n"
	policy    = `{"kind": "Policy", "apiVersion": "v1", "predicates": [
		{"name": "PodFitsResources"}, {"name": "PodFitsHost"}, {"name": "PodFitsHostPorts"}, {"name": "PodMatchNodeSelector"}, {"name": "NodeDiskConflict"},
		{"name": "MaxPDVolumeCountPredicate"}, {"name": "VolumeZonePredicate"}, {"name": "VolumeBindingPredicate"}, {"name": "PodToleratesNodeTaints"},
		{"name": "NodeMemoryPressurePredicate"}, {"name": "PodAffinityPredicate"}],
		"priorities": [{"name": "LeastRequestedPriority", "weight": 1}, {"name": "BalancedResourceAllocation", "weight": 1}]}`
)

// newWorld starts the cluster with the flags that the documents name.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	path := func(name string) string { return filepath.Join(w.dir, name) }
	w.file("tokens.csv", tokens)
	w.file("passwords.csv", passwords)
	w.file("policy.json", policy)
	binary := os.Getenv("BALSA_BIN")
	if binary == "" {
		binary = "../../bin/balsa"
	}
	h, err := host.New(host.Config{Balsa: binary, Flags: []string{
		"--token-auth-file=" + path("tokens.csv"), "--basic-auth-file=" + path("passwords.csv"), "--scheduler-config=" + path("policy.json"),
		"--enable-initializers", "--enable-pod-presets", "--legacy-apis", "--legacy-service-account-tokens",
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.host = h
	t.Cleanup(func() {
		if t.Failed() {
			log := strings.Split(h.Log(), "\n")
			t.Logf("the server's log:\n%s", strings.Join(log[max(0, len(log)-40):], "\n"))
		}
		if err := h.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if out, err := h.Up(t.Context(), "--demo=false"); err != nil {
		t.Fatalf("balsa up: %v\n%s\n%s", err, out, h.Log())
	}
	w.serveImages()
	return w
}

// row is something that a document prints.
type row struct {
	document, from, to int
	what               string
	run                func(w *world) // nil: it does not run
	why                string         // why it does not run, or runs otherwise than printed
}

// TestDocuments runs the rows in their order, and ends with a list of what ran.
func TestDocuments(t *testing.T) {
	w := newWorld(t)
	ran, others := 0, []string{}
	for _, r := range rows {
		at := fmt.Sprintf("document %d line %d", r.document, r.from)
		if r.run == nil {
			others = append(others, at+": "+r.what+": "+r.why)
			continue
		}
		if t.Run(at+" "+r.what, func(t *testing.T) { r.run(&world{T: t, host: w.host, dir: w.dir}) }) {
			ran++
		}
	}
	t.Logf("%d of %d rows ran as they should; %d do not run:\n%s", ran, len(rows), len(others), strings.Join(others, "\n"))
}
