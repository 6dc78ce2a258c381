// Package nettest makes network namespaces, which stand for hosts and pods in tests of the overlay's packages.
//
// A namespace lives as long as its test and leaves nothing in the file system. Tests that use it run as root.
package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/balsahq/balsa/overlay/host"
)

// Space is a network namespace made by a test, with its loopback link up.
type Space struct {
	host.Namespace
	T    testing.TB
	Path string // to open it by
}

// Open makes a network namespace and returns its handle, which the test's end closes.
func Open(t testing.TB) int {
	t.Helper()
	type result struct {
		h   netns.NsHandle
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, left in the namespace, ends with the goroutine
		h, err := netns.New()
		made <- result{h, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatalf("network namespace (tests of this package run as root): %v", r.err)
	}
	t.Cleanup(func() { r.h.Close() })
	return int(r.h)
}

// Path returns the path by which other processes open the namespace of a handle.
func Path(handle int) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), handle) }

// New makes a Space.
func New(t testing.TB) Space {
	t.Helper()
	s := Space{T: t, Path: Path(Open(t))}
	var err error
	if s.Namespace, err = host.OpenNamespace(s.Path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Namespace.Close() })
	s.Run("ip", "link", "set", "lo", "up")
	return s
}

// Run runs a program in the namespace and returns what it printed.
func (s Space) Run(name string, args ...string) string {
	s.T.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + s.Path, name}, args...)...).CombinedOutput()
	if err != nil {
		s.T.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Sh runs shell commands in the namespace, up to the first that fails, and returns what they printed.
func (s Space) Sh(format string, args ...any) string {
	s.T.Helper()
	return s.Run("sh", "-ec", fmt.Sprintf(format, args...))
}

// Cable joins the Space to another by a pair of links, which are up, each with an address unless that is empty.
func (s Space) Cable(link, address string, to Space, toLink, toAddress string) {
	s.T.Helper()
	s.Run("ip", "link", "add", link, "type", "veth", "peer", "name", toLink, "netns", to.Path)
	for _, end := range []struct {
		Space
		link, address string
	}{{s, link, address}, {to, toLink, toAddress}} {
		if end.address != "" {
			end.Run("ip", "addr", "add", end.address, "dev", end.link)
		}
		end.Run("ip", "link", "set", end.link, "up")
	}
}

// Eventually polls until ok, or fails the test after a minute with what was waited for and the detail.
func Eventually(t testing.TB, what string, ok func() bool, detail func() string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("timed out waiting until %s\n%s", what, detail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
