package process

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// ProgressFD tells a server which descriptor its starter reads; each line is
// one milestone.
const ProgressFD = "BALSA_PROGRESS_FD"

// The milestones, in the order in which they usually come.
const (
	MilestoneAPI     = "api"
	MilestoneLeader  = "leader"
	MilestoneRuntime = "runtime"
	MilestoneNode    = "node"
)

// Progress reports milestones to whoever started this process: `balsa up`
// through a pipe, systemd through its socket.
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
		syscall.CloseOnExec(fd) // or the container runtime would hold it open
		p.pipe = os.NewFile(uintptr(fd), "progress")
	}
	os.Unsetenv(ProgressFD)
	p.systemd = os.Getenv("NOTIFY_SOCKET")
	os.Unsetenv("NOTIFY_SOCKET") // or the container runtime would say that it is ready
	return p
}

// Reached reports one milestone; after the last one the starter is let go.
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
