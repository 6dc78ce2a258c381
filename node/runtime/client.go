package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/fault"
)

// namespace is where CRI keeps its images and containers.
const namespace = "k8s.io"

// listedTimeout bounds how long CRI may take to learn of an imported image.
const listedTimeout = 30 * time.Second

// awaitSocket waits until containerd accepts connections, or has ended.
func (c *Containerd) awaitSocket(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("wait for containerd: %w", err)
	}
	defer watch.Close()
	if err := watch.Add(filepath.Dir(c.cfg.Socket())); err != nil {
		return fmt.Errorf("wait for containerd: %w", err)
	}
	gone := make(chan struct{})
	go fault.Contained("node/runtime", func() {
		if awaitExit(ctx, pid) == nil {
			close(gone)
		}
	})()
	for {
		if conn, err := net.Dial("unix", c.cfg.Socket()); err == nil {
			return conn.Close()
		}
		select {
		case <-watch.Events:
		case <-time.After(20 * time.Millisecond): // the socket exists before it listens
		case <-gone:
			return fmt.Errorf("containerd ended while starting; its log is %s", c.cfg.logFile())
		case <-ctx.Done():
			return fmt.Errorf("containerd did not answer on %s within %s; its log is %s", c.cfg.Socket(), readyTimeout, c.cfg.logFile())
		}
	}
}

func connect(socket string) (*containerd.Client, error) {
	if _, err := os.Stat(socket); err != nil {
		return nil, fmt.Errorf("no container runtime on %s: is Balsa running? (%w)", socket, err)
	}
	return containerd.New(socket, containerd.WithDefaultNamespace(namespace), containerd.WithTimeout(10*time.Second))
}

// ImportCarried imports the images inside this binary unless they are there.
func ImportCarried(ctx context.Context, socket string) error {
	assets, id, err := manifest()
	if err != nil {
		return err
	}
	client, err := connect(socket)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx = namespaces.WithNamespace(ctx, namespace)
	const label = "balsa/carried"
	if img, err := client.ImageService().Get(ctx, PauseImage); err == nil && img.Labels[label] == id {
		return nil
	}
	for _, a := range assets {
		if a.name != carriedImages {
			continue
		}
		data, err := readAsset(a)
		if err != nil {
			return err
		}
		imported, err := importImages(ctx, client, bytes.NewReader(data))
		if err != nil {
			return err
		}
		for _, img := range imported {
			img.Labels = map[string]string{label: id, "io.cri-containerd.image": "managed"}
			if _, err := client.ImageService().Update(ctx, img, "labels"); err != nil {
				return err
			}
		}
	}
	return nil
}

func importImages(ctx context.Context, client *containerd.Client, r io.Reader) ([]images.Image, error) {
	imported, err := client.Import(ctx, r, containerd.WithAllPlatforms(false))
	if err != nil {
		return nil, err
	}
	for _, img := range imported {
		if err := containerd.NewImage(client, img).Unpack(ctx, "overlayfs"); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", img.Name, err)
		}
	}
	if err := awaitListed(ctx, client, imported); err != nil {
		return nil, err
	}
	return imported, nil
}

// awaitListed returns when CRI lists the images. It learns of them by
// containerd's events: a pod that starts before would have them pulled.
func awaitListed(ctx context.Context, client *containerd.Client, imported []images.Image) error {
	ctx, cancel := context.WithTimeout(ctx, listedTimeout)
	defer cancel()
	cri := criImages(client)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, img := range imported {
		for {
			got, err := cri.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: img.Name}})
			if err == nil && got.Image != nil {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("image %s is imported, but the runtime does not list it; import it again: %w", img.Name, errors.Join(err, ctx.Err()))
			}
		}
	}
	return nil
}

// criImages is CRI's image service at the other end of client's connection.
func criImages(client *containerd.Client) runtimeapi.ImageServiceClient {
	return runtimeapi.NewImageServiceClient(client.Conn().(grpc.ClientConnInterface))
}

// Import reads a docker or OCI archive, plain or gzipped, and returns the names
// of the images in it.
func Import(ctx context.Context, socket string, r io.Reader) ([]string, error) {
	client, err := connect(socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	imported, err := importImages(namespaces.WithNamespace(ctx, namespace), client, r)
	if err != nil {
		return nil, err
	}
	if len(imported) == 0 {
		return nil, errors.New("the archive holds no image with a name")
	}
	names := make([]string, len(imported))
	for i, img := range imported {
		names[i] = img.Name
	}
	return names, nil
}

// Image is one line of `balsa image ls`.
type Image struct {
	Name   string
	Digest string
	Bytes  int64 // compressed content
}

// List returns the images by name; the references that CRI keeps by identity
// are left out.
func List(ctx context.Context, socket string) ([]Image, error) {
	client, err := connect(socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx = namespaces.WithNamespace(ctx, namespace)
	found, err := client.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, img := range found {
		if strings.HasPrefix(img.Name(), "sha256:") {
			continue
		}
		size, err := img.Size(ctx)
		if err != nil {
			size = 0
		}
		out = append(out, Image{Name: img.Name(), Digest: img.Target().Digest.String(), Bytes: size})
	}
	return out, nil
}
