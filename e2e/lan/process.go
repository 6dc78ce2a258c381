package lan

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that runs on a machine until something ends it.
type Process struct {
	PID int

	cmd    *exec.Cmd
	ended  chan struct{}
	result error
}

// Program describes a program to start. Its output is appended to the file Log.
type Program struct {
	Path string
	Args []string
	Env  []string // in addition to this process's own
	Log  string
}

// Start runs a program on the machine; the program dies with this process.
func (m *Machine) Start(prog Program) (*Process, error) {
	log, err := os.OpenFile(prog.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	enter := []string{"--net=/run/netns/" + m.Name}
	if m.init != nil {
		enter = m.init.enter()
	}
	cmd := exec.Command("nsenter", append(append(enter, "--", prog.Path), prog.Args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), prog.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if m.init != nil {
		err = m.init.start(cmd)
	} else {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		err = startHere(cmd)
	}
	if err != nil {
		return nil, err
	}
	p := &Process{PID: cmd.Process.Pid, cmd: cmd, ended: make(chan struct{})}
	go func() { p.result = cmd.Wait(); close(p.ended) }()
	m.mu.Lock()
	m.processes = append(m.processes, p)
	m.mu.Unlock()
	p.awaitProgram()
	return p, m.adopt(p.PID)
}

// awaitProgram waits until the process has changed from nsenter to the program, or has ended.
func (p *Process) awaitProgram() {
	nsenter, err := filepath.EvalSymlinks(p.cmd.Path)
	if err != nil {
		return
	}
	for p.Running() {
		if now, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID)); err != nil || now != nsenter {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// starter is a thread that starts programs and ends only with this process. The kernel ends a child when the thread
// that started it ends (see prctl(2), PR_SET_PDEATHSIG), and threads that dial from machines do end.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// startHere starts a program in this process's PID namespace.
func startHere(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Running reports whether the process exists, paused or not.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Pause stops the process until Resume.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill9 kills the process as a power cut would, and waits until it has ended.
func (p *Process) Kill9() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.wait(10 * time.Second)
}

// Stop asks the process to end and waits until it has ended.
func (p *Process) Stop(patience time.Duration) error {
	if err := errors.Join(p.Resume(), p.Signal(syscall.SIGTERM)); err != nil {
		return err
	}
	return p.wait(patience)
}

func (p *Process) wait(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d (%s) does not end within %s", p.PID, strings.Join(p.cmd.Args, " "), patience)
	}
}
