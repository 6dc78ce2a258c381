package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// AgentConfig configures an Agent.
type AgentConfig struct {
	// Node is the name of this node.
	Node string
	// CNIConfDir and CNIBinDirs are those of the container runtime, so that probes are attached as pods are.
	CNIConfDir string
	CNIBinDirs []string
	// StateDir keeps the record of open probes.
	StateDir string
	Logger   *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *AgentConfig) Validate() error {
	var errs []error
	for name, value := range map[string]string{"Node": c.Node, "CNIConfDir": c.CNIConfDir, "StateDir": c.StateDir} {
		if value == "" {
			errs = append(errs, fmt.Errorf("check: %s is missing", name))
		}
	}
	if len(c.CNIBinDirs) == 0 {
		errs = append(errs, errors.New("check: CNIBinDirs are missing"))
	}
	return errors.Join(errs...)
}

var (
	errNoProbe = errors.New("no probe is open for this run: its time is over, or the node was restarted")
	errTooMany = fmt.Errorf("%d checks are under way on this node: wait until one ends", mostProbes)
	errOpen    = errors.New("this run has an open probe on this node already")
	errEnding  = errors.New("the node is stopping; check it again once it runs")
)

// Agent carries out the requests of a check on one node. It is safe for concurrent use.
type Agent struct {
	cfg AgentConfig

	mu     sync.Mutex
	ended  bool
	probes map[string]*probe // by run; nil while it is being attached
	stale  sync.Mutex        // held while probes of earlier processes are removed
}

// NewAgent makes an agent. It answers requests while Run runs.
func NewAgent(cfg AgentConfig) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Agent{cfg: cfg, probes: make(map[string]*probe)}, nil
}

// Run removes probes that a killed process left, and when ctx ends those of this process.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.removeStale(ctx); err != nil { // the pod network may not be set up yet; the next check tries again
		a.cfg.Logger.Debug("cannot remove old probes of a network check; they stay until the next check", "err", err)
	}
	<-ctx.Done()
	a.mu.Lock()
	a.ended = true
	var open []string
	for run := range a.probes {
		open = append(open, run)
	}
	a.mu.Unlock()
	for _, run := range open {
		if _, err := a.close(run); err != nil && !errors.Is(err, errNoProbe) {
			a.cfg.Logger.Warn("cannot remove a network check's probe; it stays until the next check", "err", err)
		}
	}
	return ctx.Err()
}

// ServeHTTP answers one Request. The caller must have authorized it.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req Request
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20))
	err := decoder.Decode(&req)
	if err == nil {
		err = req.Validate()
	}
	if err != nil {
		http.Error(w, "network check: "+err.Error(), http.StatusBadRequest)
		return
	}
	reply, err := a.do(r.Context(), &req)
	if err != nil {
		code := http.StatusInternalServerError
		switch {
		case errors.Is(err, errNoProbe):
			code = http.StatusNotFound
		case errors.Is(err, errTooMany), errors.Is(err, errOpen), errors.Is(err, errEnding):
			code = http.StatusConflict
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply)
}

func (a *Agent) do(ctx context.Context, req *Request) (*Reply, error) {
	switch {
	case req.Open != nil:
		opened, err := a.open(ctx, req.Run, time.Duration(req.Open.Seconds)*time.Second)
		return &Reply{Opened: opened}, err
	case req.Probe != nil:
		p, err := a.probe(req.Run)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(req.Probe.Seconds)*time.Second)
		defer cancel()
		return &Reply{Results: p.try(ctx, req.Probe.Targets)}, nil
	}
	heard, err := a.close(req.Run)
	return &Reply{Heard: heard}, err
}

func (a *Agent) probe(run string) (*probe, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.probes[run]; p != nil {
		return p, nil
	}
	return nil, errNoProbe
}

// open attaches a probe, and closes it when its time is over.
func (a *Agent) open(ctx context.Context, run string, life time.Duration) (*Opened, error) {
	if err := a.reserve(run); err != nil {
		return nil, err
	}
	if err := a.removeStale(ctx); err != nil {
		a.cfg.Logger.Warn("cannot remove old probes of a network check; they stay until the next check", "err", err)
	}
	p, err := a.attach(context.WithoutCancel(ctx), run)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || a.ended {
		delete(a.probes, run)
		if err == nil {
			err = errors.Join(errEnding, p.end())
		}
		return nil, err
	}
	a.probes[run] = p
	p.timer = time.AfterFunc(life, func() {
		a.cfg.Logger.Info("a network check was not closed in time; its probe is removed")
		if _, err := a.close(run); err != nil && !errors.Is(err, errNoProbe) {
			a.cfg.Logger.Warn("cannot remove a network check's probe; it stays until the next check", "err", err)
		}
	})
	return &p.opened, nil
}

// reserve reserves a place in the table of probes.
func (a *Agent) reserve(run string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return errEnding
	}
	if _, ok := a.probes[run]; ok {
		return errOpen
	}
	if len(a.probes) >= mostProbes {
		return errTooMany
	}
	a.probes[run] = nil
	return nil
}

// close ends a probe and returns the nodes from which it received datagrams.
func (a *Agent) close(run string) ([]string, error) {
	a.mu.Lock()
	p := a.probes[run]
	if p == nil { // an unknown run, or one whose probe is still being attached
		a.mu.Unlock()
		return nil, errNoProbe
	}
	delete(a.probes, run)
	a.mu.Unlock()
	p.timer.Stop()
	return p.heard(), p.end()
}

func (a *Agent) marker(id string) string { return filepath.Join(a.cfg.StateDir, id) }

// removeStale detaches the probes of a process that was killed.
func (a *Agent) removeStale(ctx context.Context) error {
	a.stale.Lock()
	defer a.stale.Unlock()
	files, err := os.ReadDir(a.cfg.StateDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		run, ok := strings.CutPrefix(f.Name(), idPrefix)
		a.mu.Lock()
		_, ours := a.probes[run]
		a.mu.Unlock()
		if ok && !ours {
			errs = append(errs, a.detach(ctx, f.Name(), ""))
		}
	}
	return errors.Join(errs...)
}
