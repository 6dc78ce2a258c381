package memoryevents

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// await returns what Wait returned within a minute.
func await(t *testing.T, w *Watch) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- w.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("no event")
		return nil
	}
}

// TestAThresholdTells fills a real group of version 1.
func TestAThresholdTells(t *testing.T) {
	dir := "/sys/fs/cgroup/memory/balsa-memoryevents-test"
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		return // a machine with version 2 alone
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	w, err := New(Group{Dir: dir}, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	// The process holds 64 MiB until its input ends.
	hog := exec.Command("sh", "-c", fmt.Sprintf("echo $$ > %s/cgroup.procs; x=$(head -c 67108864 /dev/zero | tr '\\0' x); read y", dir))
	in, err := hog.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	if err := await(t, w); err != nil {
		t.Error(err)
	}
	_ = in.Close()
	_ = hog.Wait()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsAWait(t *testing.T) {
	for name, g := range map[string]Group{
		"version 1": {Dir: "/sys/fs/cgroup/memory"},
		"version 2": {Pressure: "/proc/pressure/memory", Unified: true},
	} {
		w, err := New(g, 1<<50)
		if errors.Is(err, os.ErrNotExist) {
			t.Logf("%s: this kernel does not have it: %v", name, err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		go func() { _ = w.Close() }()
		if err := await(t, w); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAKernelWithoutEventsIsAnError(t *testing.T) {
	dir := t.TempDir()
	for _, g := range []Group{{Dir: dir}, {Pressure: filepath.Join(dir, "memory.pressure"), Unified: true}} {
		if _, err := New(g, 1); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%+v: %v", g, err)
		}
	}
}
