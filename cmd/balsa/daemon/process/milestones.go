package process

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// ProgressFD is the environment variable by which `balsa up` tells a server which file
// descriptor to write milestones to, one a line.
const ProgressFD = "BALSA_PROGRESS_FD"

// The milestones, in the order in which they usually come.
const (
	MilestoneAPI     = "api"
	MilestoneLeader  = "leader"
	MilestoneRuntime = "runtime"
	MilestoneNode    = "node"
)

// Progress reports milestones to the program that started this process: each of them
// to `balsa up` through a pipe, the last one to systemd through its socket.
type Progress struct {
	mu      sync.Mutex
	pipe    io.WriteCloser
	systemd string // socket of sd_notify(3), "" without systemd
	waiting map[string]bool
	done    chan struct{} // closed after the last milestone
}

func NewProgress(milestones ...string) *Progress {
	p := &Progress{waiting: map[string]bool{}, done: make(chan struct{})}
	for _, m := range milestones {
		p.waiting[m] = true
	}
	if fd, err := strconv.Atoi(os.Getenv(ProgressFD)); err == nil && fd > 2 {
		syscall.CloseOnExec(fd) // or the container runtime would inherit it and hold it open
		p.pipe = os.NewFile(uintptr(fd), "progress")
	}
	os.Unsetenv(ProgressFD)
	p.systemd = os.Getenv("NOTIFY_SOCKET")
	os.Unsetenv("NOTIFY_SOCKET") // or the container runtime would inherit it and report that it is ready
	return p
}

// Reached reports one milestone. Milestones that are not waited for are ignored. After
// the last one it closes the pipe, tells systemd and closes Done.
func (p *Progress) Reached(milestone string) {
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

// Done is closed after the last milestone.
func (p *Progress) Done() <-chan struct{} { return p.done }
