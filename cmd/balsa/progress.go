package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// progressFD tells a server which descriptor its starter reads; each line is
// one milestone.
const progressFD = "BALSA_PROGRESS_FD"

// The milestones, in the order in which they usually come.
const (
	milestoneAPI     = "api"
	milestoneLeader  = "leader"
	milestoneRuntime = "runtime"
	milestoneNode    = "node"
)

// progress reports milestones to whoever started this process: `balsa up`
// through a pipe, systemd through its socket.
type progress struct {
	mu      sync.Mutex
	pipe    io.WriteCloser
	systemd string // socket of sd_notify(3), "" without systemd
	waiting map[string]bool
	done    chan struct{} // closed after the last milestone
}

func newProgress(milestones ...string) *progress {
	p := &progress{waiting: map[string]bool{}, done: make(chan struct{})}
	for _, m := range milestones {
		p.waiting[m] = true
	}
	if fd, err := strconv.Atoi(os.Getenv(progressFD)); err == nil && fd > 2 {
		syscall.CloseOnExec(fd) // or the container runtime would hold it open
		p.pipe = os.NewFile(uintptr(fd), "progress")
	}
	os.Unsetenv(progressFD)
	p.systemd = os.Getenv("NOTIFY_SOCKET")
	os.Unsetenv("NOTIFY_SOCKET") // or the container runtime would say that it is ready
	return p
}

// reached reports one milestone; after the last one the starter is let go.
func (p *progress) reached(milestone string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.waiting[milestone] {
		return
	}
	delete(p.waiting, milestone)
	if p.pipe != nil {
		fmt.Fprintln(p.pipe, milestone)
	}
	if len(p.waiting) > 0 {
		return
	}
	if p.pipe != nil {
		p.pipe.Close()
		p.pipe = nil
	}
	notifySystemd(p.systemd, "READY=1")
	close(p.done)
}

// notifySystemd speaks sd_notify(3) at a socket; at none it does nothing.
func notifySystemd(path, state string) {
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
