package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

const (
	maxLogBytes  = 16 << 20        // containerd's log starts anew past this size
	readyTimeout = 5 * time.Minute // as long as it lives: a slow disk is no reason to end the server
	// A containerd that ends is started again after restartDelay, after twice as long each time that it ends again within
	// steadyAfter, and after maxRestartDelay at most.
	restartDelay, maxRestartDelay, steadyAfter = time.Second, 30 * time.Second, time.Minute
)

// Containerd is the child process.
type Containerd struct {
	cfg   Config
	ready chan struct{}
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Containerd, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Containerd{cfg: cfg, ready: make(chan struct{})}, nil
}

// Ready is closed once containerd has answered for the first time and the
// carried images are there.
func (c *Containerd) Ready() <-chan struct{} { return c.ready }

// Run adopts a containerd that an earlier Balsa left, or starts one, and starts
// it again whenever it ends. It returns when ctx ends and leaves it running.
func (c *Containerd) Run(ctx context.Context) error {
	if err := LayOut(c.cfg.BinDir); err != nil {
		return err
	}
	changed, err := c.cfg.writeConfig()
	if err != nil {
		return fmt.Errorf("container runtime: %w", err)
	}
	pid, delay := c.adoptable(changed), restartDelay
	for first := true; ; first = false {
		if pid == 0 {
			if pid, err = c.start(); err != nil {
				return fmt.Errorf("start containerd: %w", err)
			}
		}
		if err := c.awaitSocket(ctx, pid); err != nil {
			return err
		}
		if first {
			if err := ImportCarried(ctx, c.cfg.Socket()); err != nil {
				return fmt.Errorf("import the carried images: %w", err)
			}
			close(c.ready)
		}
		began := time.Now()
		if err := awaitExit(ctx, pid); err != nil {
			return nil // ctx ended; the child lives on
		}
		if time.Since(began) > steadyAfter {
			delay = restartDelay
		}
		c.cfg.Logger.Warn("containerd ended and is started again", "pid", pid, "log", c.cfg.logFile())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
		delay = min(2*delay, maxRestartDelay)
		pid = 0
	}
}

// adoptable returns the process id of a child that runs this same program with
// this same configuration; another one is asked to leave first. Shims and
// containers do not notice.
func (c *Containerd) adoptable(configChanged bool) int {
	pid := livePID(c.cfg)
	if pid == 0 {
		return 0
	}
	if !configChanged && sameProgram(pid, c.cfg.Program) {
		return pid
	}
	c.cfg.Logger.Info("containerd is replaced: the program or its configuration changed", "pid", pid)
	endProcess(pid, 10*time.Second)
	return 0
}

// livePID returns the process ID in the pid file, or 0 when that process is not our containerd: the kernel may have given the
// ID to another process meanwhile.
func livePID(cfg Config) int {
	raw, err := os.ReadFile(cfg.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return 0
	}
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !strings.Contains(string(cmdline), cfg.configFile()) {
		return 0
	}
	return pid
}

func sameProgram(pid int, program string) bool {
	running, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	if err != nil {
		return false
	}
	wanted, err := os.Stat(program)
	return err == nil && os.SameFile(running, wanted)
}

// start launches the child in a new session, so that no signal for this process's group reaches it.
func (c *Containerd) start() (int, error) {
	if info, err := os.Stat(c.cfg.logFile()); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(c.cfg.logFile(), c.cfg.logFile()+".1"); err != nil {
			return 0, err
		}
	}
	log, err := os.OpenFile(c.cfg.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	if err := os.Remove(c.cfg.Socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	cmd := exec.Command(c.cfg.Program, "containerd", "--config", c.cfg.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "GOGC=50", "PATH="+c.cfg.BinDir+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	go fault.Contained("node/runtime", func() { _ = cmd.Wait() })() // reaps; awaitExit sees the end through the pidfd
	return pid, os.WriteFile(c.cfg.pidFile(), []byte(strconv.Itoa(pid)+"\n"), 0o644)
}

// awaitExit returns nil when the process ended and ctx's error when that comes
// first.
func awaitExit(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	// The runtime's poller waits for the descriptor: no thread is held.
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := file.SyscallConn()
	if err != nil {
		return pollExit(ctx, fd)
	}
	err = conn.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return pollExit(ctx, fd)
	}
	return nil
}

// pollExit is awaitExit where the runtime's poller does not take pidfds.
func pollExit(ctx context.Context, fd int) error {
	for ctx.Err() == nil {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 1000); err == nil && n > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// endProcess asks with SIGTERM and insists with SIGKILL after grace.
func endProcess(pid int, grace time.Duration) {
	if syscall.Kill(pid, syscall.SIGTERM) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if awaitExit(ctx, pid) != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_ = awaitExit(context.Background(), pid)
	}
}
