package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd/command"
	ctrarchive "github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // the child is this test binary
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "containerd" {
		if err := command.App().Run(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testConfig is a runtime of its own below a short path: socket addresses are
// bounded.
func testConfig(t *testing.T) Config {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runDir, err := os.MkdirTemp("/run", "balsa-t")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := Config{
		DataDir: dir, RunDir: runDir, BinDir: filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "cni"),
		Program: program, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() {
		if err := Teardown(cfg, "/balsa-test-none"); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(runDir); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

// running is one Run of a Containerd; stop ends it and returns its error.
func running(t *testing.T, cfg Config) (stop func() error) {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case <-c.Ready():
	case err := <-done:
		cancel()
		log, _ := os.ReadFile(cfg.logFile())
		t.Fatalf("containerd did not become ready: %v\n%s", err, log)
	}
	stop = func() error { cancel(); return <-done }
	t.Cleanup(cancel)
	return stop
}

func TestChildOutlivesItsStarterAndIsAdopted(t *testing.T) {
	cfg := testConfig(t)
	stop := running(t, cfg)
	first := livePID(cfg)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if livePID(cfg) != first {
		t.Fatal("containerd ended with the one that started it")
	}
	stop = running(t, cfg)
	defer stop()
	if pid := livePID(cfg); pid != first {
		t.Fatalf("process %d was not adopted: now it is %d", first, pid)
	}
}

func TestChildIsStartedAgainWhenItDies(t *testing.T) {
	cfg := testConfig(t)
	stop := running(t, cfg)
	defer stop()
	first := livePID(cfg)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if pid := livePID(cfg); pid != 0 && pid != first {
			if images, err := List(ctx, cfg.Socket()); err == nil && len(images) == 3 {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			log, _ := os.ReadFile(cfg.logFile())
			images, err := List(context.Background(), cfg.Socket())
			t.Fatalf("containerd did not come back with its images: %v %v\n%s", images, err, log)
		}
	}
}

func TestCarriedImagesAreThere(t *testing.T) {
	cfg := testConfig(t)
	stop := running(t, cfg)
	defer stop()
	images, err := List(t.Context(), cfg.Socket())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range images {
		names = append(names, i.Name)
	}
	if got := strings.Join(names, " "); !strings.Contains(got, PauseImage) || !strings.Contains(got, HelloImage) {
		t.Fatalf("images: %s", got)
	}
}

// A pod may start as soon as an import has returned.
func TestImportedImagesAreKnownToCRI(t *testing.T) {
	cfg := testConfig(t)
	stop := running(t, cfg)
	defer stop()
	client, err := connect(cfg.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	hello, err := client.ImageService().Get(ctx, HelloImage)
	if err != nil {
		t.Fatal(err)
	}
	const names = 10 // of one image: CRI learns of them one by one
	var options []ctrarchive.ExportOpt
	for i := range names {
		options = append(options, ctrarchive.WithManifest(hello.Target, fmt.Sprintf("example.test/hello:%d", i)))
	}
	var archive bytes.Buffer
	if err := client.Export(ctx, &archive, options...); err != nil {
		t.Fatal(err)
	}
	imported, err := Import(ctx, cfg.Socket(), &archive)
	if err != nil || len(imported) != names {
		t.Fatalf("%d imported: %v", len(imported), err)
	}
	for _, name := range imported {
		got, err := criImages(client).ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err != nil || got.Image == nil {
			t.Fatalf("%s after the import: %v, %v", name, got, err)
		}
	}
}

func TestImportRefusesWhatIsNoArchive(t *testing.T) {
	cfg := testConfig(t)
	stop := running(t, cfg)
	defer stop()
	if _, err := Import(t.Context(), cfg.Socket(), strings.NewReader("not an archive")); err == nil {
		t.Fatal("garbage was imported")
	}
}

func TestListWithoutRuntimeSaysSo(t *testing.T) {
	_, err := List(t.Context(), filepath.Join(t.TempDir(), "none.sock"))
	if err == nil || !strings.Contains(err.Error(), "is Balsa running?") {
		t.Fatalf("got %v", err)
	}
}

func TestLayOutRepairsAndKeeps(t *testing.T) {
	dir := t.TempDir()
	if err := LayOut(dir); err != nil {
		t.Fatal(err)
	}
	runc := filepath.Join(dir, "runc")
	before, err := os.Stat(runc)
	if err != nil {
		t.Fatal(err)
	}
	if err := LayOut(dir); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(runc); err != nil || !os.SameFile(before, after) {
		t.Fatalf("an intact program was written again (%v)", err)
	}
	if err := os.Remove(runc); err != nil {
		t.Fatal(err)
	}
	if err := LayOut(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(runc); err != nil {
		t.Fatalf("a missing program did not come back: %v", err)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := New(Config{DataDir: "/x"})
	if err == nil || !strings.Contains(err.Error(), "BinDir, CNIConfDir, Logger, Program, RunDir") {
		t.Fatalf("got %v", err)
	}
	long := Config{DataDir: "/x", BinDir: "/x", CNIConfDir: "/x", Program: "/x", RunDir: "/" + strings.Repeat("x", maxRunDir), Logger: slog.Default()}
	if err := long.Validate(); err == nil || !strings.Contains(err.Error(), "socket address") {
		t.Fatalf("got %v", err)
	}
}

func TestAwaitExitStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- awaitExit(ctx, os.Getpid()) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}
