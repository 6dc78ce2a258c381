package e2e

import (
	"archive/tar"
	"bytes"
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/balsahq/balsa/e2e/host"
)

var (
	helmBinary     = fromEnv("HELM_BIN", "../bin/helm")
	operatorBinary = fromEnv("OPERATOR_BIN", "../bin/operator")

	otherKubeconfig = flag.String("other-kubeconfig", "", "run TestEcosystem against the cluster of this kubeconfig, which somebody else has started, and not against Balsa")
	otherNetns      = flag.String("other-netns", "", "the name of the network namespace in which that cluster runs")
)

// TestEcosystem uses a cluster with common tools: Helm, and an operator written with controller-runtime. The test does
// not depend on Balsa: with -other-kubeconfig and -other-netns it runs against another cluster.
func TestEcosystem(t *testing.T) {
	var c *cluster
	if *otherKubeconfig != "" {
		c = otherCluster(t)
	} else {
		c = start(t)
	}
	kubectl, err := filepath.Abs(kubectlBinary)
	if err != nil {
		t.Fatal(err)
	}
	c.UseKubectl(kubectl)
	fillRegistry(c)
	for name, use := range map[string]func(*cluster){"helm": helmWorks, "operator": operatorWorks} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use(&cluster{Host: c.Host, t: t})
		})
	}
}

// otherCluster is a cluster that this test does not start or stop.
func otherCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	h := &host.Host{Name: *otherNetns, DataDir: dir, RunDir: dir}
	if err := os.Mkdir(filepath.Dir(h.Kubeconfig()), 0o700); err != nil {
		t.Fatal(err)
	}
	target, err := filepath.Abs(*otherKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, h.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	return &cluster{Host: h, t: t}
}

// fillRegistry runs a registry on the cluster's host with the images of the chart and of the operator. Charts can be
// pushed to it too.
func fillRegistry(c *cluster) {
	c.t.Helper()
	listener, err := c.Listen("tcp", "127.0.0.1:5000")
	if err != nil {
		c.t.Fatal(err)
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	go func() { _ = server.Serve(listener) }()
	c.t.Cleanup(func() { server.Close() })

	hello := carriedImage(c.t)
	for image, content := range map[string]v1.Image{
		"hello:1": hello, "hello:2": withVariable(c.t, hello, "VERSION=2"), "site-operator:1": programImage(c.t, operatorBinary, "manager"),
	} {
		ref, err := name.ParseReference("127.0.0.1:5000/"+image, name.Insecure)
		if err != nil {
			c.t.Fatal(err)
		}
		if err := remote.Write(ref, content, remote.WithTransport(&http.Transport{DialContext: c.Dial})); err != nil {
			c.t.Fatal(err)
		}
	}
}

func withVariable(t *testing.T, img v1.Image, variable string) v1.Image {
	t.Helper()
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := *file.Config.DeepCopy()
	config.Env = append(config.Env, variable)
	out, err := mutate.Config(img, config)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// programImage returns an image with one static program, as made FROM scratch.
func programImage(t *testing.T, path, program string) v1.Image {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("the operator is not built: run `make bin/operator` (%v)", err)
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	if err := w.WriteHeader(&tar.Header{Name: program, Mode: 0o755, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Entrypoint: []string{"/" + program}, User: "65532:65532"}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}
