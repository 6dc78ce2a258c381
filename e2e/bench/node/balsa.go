package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/host"
)

// Images inside the binary, so that pods need no registry.
const (
	helloImage = "docker.io/balsahq/hello:1"
	pauseImage = "docker.io/balsahq/pause:1"
)

// balsa is the build under measurement.
type balsa struct {
	binary string
	host   *host.Host
	cmd    *exec.Cmd     // of the running server
	ended  chan struct{} // closed when it has ended
	leads  chan struct{} // closed when it reported that it leads
}

func newBalsa(binary string) (*balsa, error) {
	path, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	h, err := host.New(host.Config{Balsa: path})
	if err != nil {
		return nil, err
	}
	return &balsa{binary: path, host: h}, nil
}

func (b *balsa) side() figures.Side                { return figures.Ours }
func (b *balsa) podImage() string                  { return helloImage }
func (b *balsa) restConfig() (*rest.Config, error) { return b.host.RESTConfig() }
func (b *balsa) programs() []string                { return []string{b.binary} }

func (b *balsa) nodeName() string {
	for _, flag := range b.host.Flags() {
		if name, ok := strings.CutPrefix(flag, "--node-name="); ok {
			return name
		}
	}
	return ""
}

func (b *balsa) running() bool {
	if b.cmd == nil {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

func (b *balsa) prepare(ctx context.Context, kind startKind) (bool, error) {
	switch kind {
	case fresh:
		if err := b.host.Close(); err != nil {
			return true, err
		}
		b.cmd = nil
		h, err := host.New(host.Config{Balsa: b.binary})
		b.host = h
		return true, err
	case restarted:
		return true, b.signal(syscall.SIGTERM)
	case killed:
		return true, b.signal(syscall.SIGKILL)
	case booted:
		_, err := b.host.Balsa(ctx, "down", "--cgroup-root=/"+b.host.Name)
		return true, err
	}
	return false, nil
}

// signal ends the server and waits until it has ended.
func (b *balsa) signal(signal syscall.Signal) error {
	if !b.running() {
		return nil
	}
	if err := b.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-b.ended:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the server does not end on %s", signal)
	}
}

// exec runs `balsa server`, which reports its milestones through a pipe, as it does to `balsa up`.
func (b *balsa) exec(context.Context) (time.Time, error) {
	log, err := os.OpenFile(filepath.Join(b.host.DataDir, "balsa.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return time.Time{}, err
	}
	defer log.Close()
	milestones, report, err := os.Pipe()
	if err != nil {
		return time.Time{}, err
	}
	defer report.Close()
	// The server ends with close, not with one of this program's threads.
	cmd := b.host.Command(context.Background(), b.binary, append([]string{"server"}, b.host.Flags()...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{report}
	cmd.Env = append(cmd.Env, "BALSA_PROGRESS_FD=3")
	began := time.Now()
	if err := cmd.Start(); err != nil {
		milestones.Close()
		return began, err
	}
	ended, leads := make(chan struct{}), make(chan struct{})
	b.cmd, b.ended, b.leads = cmd, ended, leads
	go func() { _ = cmd.Wait(); close(ended) }()
	go func() {
		defer milestones.Close()
		seen := sync.OnceFunc(func() { close(leads) })
		for lines := bufio.NewScanner(milestones); lines.Scan(); {
			if lines.Text() == "leader" {
				seen()
			}
		}
	}()
	return began, nil
}

func (b *balsa) leading(ctx context.Context) error {
	select {
	case <-b.leads:
		return nil
	case <-b.ended:
		return fmt.Errorf("the server ended:\n%s", b.host.Log())
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *balsa) controlPlane() []int { return []int{b.cmd.Process.Pid} }

func (b *balsa) parts() []part {
	ofThis := func(args []string) bool {
		line := strings.Join(args, " ")
		return strings.Contains(line, b.host.RunDir+"/") || strings.Contains(line, b.host.DataDir+"/")
	}
	return []part{
		{"server and agent", b.controlPlane()},
		{"containerd", figures.Processes(func(args []string) bool { return ofThis(args) && len(args) > 1 && args[1] == "containerd" })},
		{"shims", figures.Processes(func(args []string) bool {
			return ofThis(args) && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim")
		})},
	}
}

func (b *balsa) close() error {
	if b.host == nil {
		return nil
	}
	return b.host.Close()
}
