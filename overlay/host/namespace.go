package host

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"

	"github.com/balsahq/balsa/fault"
)

// Namespace is the network namespace in which the overlay works. The zero value is the namespace of the process.
type Namespace struct {
	handle netns.NsHandle
	other  bool
}

// OpenNamespace opens the namespace at a path; "" is the namespace of the process.
func OpenNamespace(path string) (Namespace, error) {
	if path == "" {
		return Namespace{}, nil
	}
	h, err := netns.GetFromPath(path)
	if err != nil {
		return Namespace{}, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return Namespace{handle: h, other: true}, nil
}

// FD returns a file descriptor of the namespace; 0 for the namespace of the process.
func (n Namespace) FD() int {
	if !n.other {
		return 0
	}
	return int(n.handle)
}

// Close releases the descriptor.
func (n Namespace) Close() error {
	if !n.other {
		return nil
	}
	return n.handle.Close()
}

// Do runs fn in the namespace. Sockets that fn opens and files below /proc/sys/net that it uses are those of the namespace;
// goroutines that it starts are not in the namespace.
func (n Namespace) Do(fn func() error) error {
	if !n.other {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer origin.Close()
		if err := netns.Set(n.handle); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = fault.Contain("overlay/host", fn)
		// A thread that cannot return to its namespace stays locked, and ends with this goroutine.
		if back := netns.Set(origin); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
