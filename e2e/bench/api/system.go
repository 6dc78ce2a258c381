package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/host"
	"github.com/balsahq/balsa/e2e/load"
)

const (
	startPatience = time.Minute
	stopPatience  = 20 * time.Second
	tick          = 10 * time.Millisecond // pause between polls
)

// program is one process of a system.
type program struct {
	path string
	args []string
	cmd  *exec.Cmd
	over chan struct{} // closed when the process has ended
}

// system is one cluster without nodes, on its own machine.
type system struct {
	side     figures.Side
	name     string
	machine  *host.Host
	programs []*program
	config   func() (*rest.Config, error) // for the administrator; fails until it can be known
	conns    []*load.Conn
	pprof    string // address of profiles; "" for none
	ready    map[string]bool
}

func newSystem(side figures.Side, name, binary string) (*system, error) {
	machine, err := host.New(host.Config{Balsa: binary})
	if err != nil {
		return nil, err
	}
	return &system{side: side, name: name, machine: machine, ready: map[string]bool{}}, nil
}

// newBalsa is a server without an agent.
func newBalsa(binary string, profiled bool) (*system, error) {
	path, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	s, err := newSystem(figures.Ours, "balsa", path)
	if err != nil {
		return nil, err
	}
	args := append([]string{"server", "--disable-agent"}, s.machine.Flags()...)
	if profiled {
		s.pprof = "127.0.0.1:6060"
		args = append(args, "--profile-address="+s.pprof)
	}
	s.programs = []*program{{path: path, args: args}}
	s.config = s.machine.RESTConfig
	return s, nil
}

// start starts the programs and waits until the API is ready.
func (s *system) start(ctx context.Context) error {
	for _, p := range s.programs {
		if err := s.exec(p); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var last error
	for ; ctx.Err() == nil; pause(ctx, 5*tick) {
		if err := s.alive(); err != nil {
			return err
		}
		cfg, err := s.config()
		if err == nil {
			err = askReady(ctx, cfg)
		}
		if err == nil {
			return nil
		}
		last = err
	}
	return fmt.Errorf("is not ready after %v: %w", startPatience, last)
}

func askReady(ctx context.Context, cfg *rest.Config) error {
	c, err := load.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Do(load.Request{Method: http.MethodGet, Path: "/readyz"}, nil)
}

func (s *system) exec(p *program) error {
	log, err := os.OpenFile(s.log(p), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = s.machine.Command(context.Background(), p.path, p.args...) // ends with close
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.over = make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(p.over) }()
	return nil
}

func (s *system) log(p *program) string {
	return filepath.Join(s.machine.DataDir, filepath.Base(p.path)+".log")
}

// alive returns an error with the end of the log if a program has ended.
func (s *system) alive() error {
	for _, p := range s.programs {
		select {
		case <-p.over:
			raw, _ := os.ReadFile(s.log(p))
			return fmt.Errorf("%s has ended: %s", filepath.Base(p.path), raw[max(0, len(raw)-2000):])
		default:
		}
	}
	return nil
}

func (s *system) pids() []int {
	var out []int
	for _, p := range s.programs {
		out = append(out, p.cmd.Process.Pid)
	}
	return out
}

// cpu returns the CPU time that the servers have used so far.
func (s *system) cpu() time.Duration { return figures.CPUTime(s.pids()) }

// maxIdle is the idle time after which a connection is replaced; it is less than the servers' limit.
const maxIdle = 15 * time.Second

// connect returns n working connections.
func (s *system) connect(ctx context.Context, n int) ([]*load.Conn, error) {
	for len(s.conns) < n {
		s.conns = append(s.conns, nil)
	}
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	err = load.Times(ctx, min(n, 8), n, func(ctx context.Context, _, i int) (err error) {
		if c := s.conns[i]; c != nil {
			if c.Idle() < maxIdle {
				return nil
			}
			_ = c.Close()
		}
		s.conns[i], err = load.Dial(ctx, cfg)
		return err
	})
	return s.conns[:n], err
}

func (s *system) dial(ctx context.Context, n int) ([]*load.Conn, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	return load.DialMany(ctx, cfg, n)
}

// once prepares something for a family, once for each cluster.
func (s *system) once(what string, do func() error) error {
	if s.ready[what] {
		return nil
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s, %s: %w", s.name, what, err)
	}
	s.ready[what] = true
	return nil
}

// namespace creates a namespace.
func (s *system) namespace(ctx context.Context, name string) error {
	return s.once("namespace "+name, func() error {
		return s.make(ctx, "/api/v1/namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}})
	})
}

// make creates an object, which may exist already.
func (s *system) make(ctx context.Context, path string, object map[string]any) error {
	conns, err := s.connect(ctx, 1)
	if err != nil {
		return err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	err = conns[0].Do(load.Request{Method: http.MethodPost, Path: path, Type: load.JSON.MediaType, Accept: load.JSON.MediaType, Body: body}, nil)
	var refused *load.StatusError
	if errors.As(err, &refused) && refused.Code == http.StatusConflict {
		return nil
	}
	return err
}

// unsafe are characters that must not be in file names.
var unsafe = regexp.MustCompile(`[^a-zA-Z0-9]+`)

// profile takes a CPU profile during a window. The returned function waits for it.
func (b *bench) profile(s *system, name string, window time.Duration) func() error {
	if s.pprof == "" || b.profiles == "" {
		return func() error { return nil }
	}
	var joined sync.WaitGroup
	var failed error
	joined.Go(func() {
		failed = b.fetchProfile(s, name, fmt.Sprintf("profile?seconds=%d", max(1, int(window.Seconds()))))
	})
	return func() error {
		joined.Wait()
		return failed
	}
}

// fetchProfile saves one of the server's profiles.
func (b *bench) fetchProfile(s *system, name, which string) error {
	client := &http.Client{Transport: &http.Transport{DialContext: s.machine.Dial, DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.pprof + "/debug/pprof/" + which)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s", resp.Status)
	}
	out, err := os.Create(filepath.Join(b.profiles, strings.Trim(unsafe.ReplaceAllString(name, "-"), "-")+".pb.gz"))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, resp.Body)
	return errors.Join(err, out.Close())
}

// close ends the programs, the newest first, and removes the machine.
func (s *system) close() error {
	load.CloseAll(s.conns)
	for i := len(s.programs) - 1; i >= 0; i-- {
		p := s.programs[i]
		if p.over == nil {
			continue
		}
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.over:
		case <-time.After(stopPatience):
			_ = p.cmd.Process.Kill()
			<-p.over
		}
	}
	return s.machine.Close()
}
