package memoryevents

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// psiTrigger asks for an event when tasks have waited for memory for 300 ms of 2 s. Other windows need the capability
// CAP_SYS_RESOURCE.
const psiTrigger = "some 300000 2000000"

// Group is a control group of memory, or the machine.
type Group struct {
	// Dir is the group's directory: of the memory controller with version 1.
	Dir string
	// Pressure is the file of pressure stall information: memory.pressure of the group, or /proc/pressure/memory.
	Pressure string
	Unified  bool // version 2
}

// Watch waits for one event after the other. One goroutine calls its methods, except Close.
type Watch struct {
	file *os.File // an eventfd, or an epoll instance with the trigger in it
	psi  *os.File // the trigger; nil with version 1
}

// New returns a watch of a group. With version 1 it signals when the group's usage passes what it is now and left bytes
// more.
func New(g Group, left int64) (*Watch, error) {
	if g.Unified {
		return newPSI(g.Pressure)
	}
	return newThreshold(g.Dir, left)
}

func newThreshold(dir string, left int64) (*Watch, error) {
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return nil, fmt.Errorf("memoryevents: %w", err)
	}
	defer func() { _ = usage.Close() }()
	text := make([]byte, 32)
	n, err := usage.Read(text)
	if err != nil {
		return nil, fmt.Errorf("memoryevents: %w", err)
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(text[:n])), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("memoryevents: %w", err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("memoryevents: eventfd: %w", err)
	}
	event := os.NewFile(uintptr(fd), "eventfd")
	order := fmt.Sprintf("%d %d %d", fd, usage.Fd(), now+left)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(order), 0); err != nil {
		_ = event.Close()
		return nil, fmt.Errorf("memoryevents: %w", err)
	}
	return &Watch{file: event}, nil
}

func newPSI(path string) (*Watch, error) {
	psi, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("memoryevents: %w", err)
	}
	if _, err := psi.Write(append([]byte(psiTrigger), 0)); err != nil {
		_ = psi.Close()
		return nil, fmt.Errorf("memoryevents: %w", err)
	}
	// Go's poller does not wait for priority events. It waits for an epoll instance that does.
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		trigger := psi.Fd()
		if err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(trigger), &unix.EpollEvent{Events: unix.EPOLLPRI, Fd: int32(trigger)}); err == nil {
			err = unix.SetNonblock(fd, true)
		}
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		_ = psi.Close()
		return nil, fmt.Errorf("memoryevents: epoll: %w", err)
	}
	return &Watch{file: os.NewFile(uintptr(fd), "epoll"), psi: psi}, nil
}

// Wait returns nil after an event, and os.ErrClosed after Close.
func (w *Watch) Wait() error {
	if w.psi == nil {
		_, err := w.file.Read(make([]byte, 8))
		return err
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		events := make([]unix.EpollEvent, 1)
		n, err := unix.EpollWait(int(fd), events, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			failed = err
			return true
		}
		if n == 1 && events[0].Events&unix.EPOLLERR != 0 {
			failed = os.ErrClosed // the group is gone
		}
		return n > 0
	})
	if err != nil {
		return os.ErrClosed // nothing else ends it: there is no deadline
	}
	return failed
}

// Close ends a Wait.
func (w *Watch) Close() error {
	err := w.file.Close()
	if w.psi != nil {
		err = errors.Join(err, w.psi.Close())
	}
	return err
}
