package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/e2e/figures"
)

// startKind is the state that a start finds.
type startKind string

const (
	fresh     startKind = "empty data directory"
	restarted startKind = "existing data, runtime up, after SIGTERM"
	killed    startKind = "existing data, runtime up, after SIGKILL"
	booted    startKind = "existing data, runtime down"
)

// part is a group of processes that share a row of the table.
type part struct {
	name string
	pids []int
}

// system is a measured cluster of one machine.
type system interface {
	side() figures.Side
	// prepare prepares a start of this kind, and reports whether the system has this kind of start.
	prepare(ctx context.Context, kind startKind) (bool, error)
	// exec starts the system and returns the time just before. It waits for nothing.
	exec(ctx context.Context) (time.Time, error)
	// leading blocks until the controllers of the last exec lead.
	leading(ctx context.Context) error
	restConfig() (*rest.Config, error) // fails until the system has written it
	nodeName() string
	podImage() string // empty: there is none yet
	running() bool
	controlPlane() []int // the processes that use CPU time for a request
	parts() []part
	programs() []string // the files to install
	close() error
}

// tick is the pause between polls.
const tick = 3 * time.Millisecond

// every calls fn until it reports true, ctx ends, or limit has passed.
func every(ctx context.Context, limit time.Duration, fn func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for !fn() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

// awaitAPI waits until /readyz says ok over TLS to the administrator.
func awaitAPI(ctx context.Context, s system) (*rest.Config, error) {
	var found *rest.Config
	var client *http.Client
	last := errors.New("no kubeconfig yet")
	err := every(ctx, 2*time.Minute, func() bool {
		cfg, err := s.restConfig()
		if err != nil {
			last = err
			return false
		}
		if found == nil || string(cfg.CAData) != string(found.CAData) {
			if client, err = rest.HTTPClientFor(cfg); err != nil {
				last = err
				return false
			}
			found = cfg
		}
		last = ready(ctx, client, cfg.Host)
		return last == nil
	})
	if err != nil {
		return nil, fmt.Errorf("the API is not ready: %w", last)
	}
	return found, nil
}

func ready(ctx context.Context, client *http.Client, host string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || string(body) != "ok" {
		return fmt.Errorf("readyz: %s", resp.Status)
	}
	return nil
}

// up starts the system empty, unless it runs, and waits until its node is ready.
func up(ctx context.Context, s system) error {
	if s.running() {
		return nil
	}
	if _, err := s.prepare(ctx, fresh); err != nil {
		return err
	}
	began, err := s.exec(ctx)
	if err != nil {
		return err
	}
	cfg, err := awaitAPI(ctx, s)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if err := s.leading(ctx); err != nil {
		return err
	}
	if err := awaitAccount(ctx, client); err != nil {
		return err
	}
	return awaitNode(ctx, client, s.nodeName(), began)
}

// upAll starts all systems and gives them the pods' image.
func (b *bench) upAll(ctx context.Context) error {
	for _, s := range b.systems {
		if err := up(ctx, s); err != nil {
			return err
		}
		if u, ok := s.(*upstream); ok {
			if err := u.shareImages(ctx, b.systems[0].(*balsa)); err != nil {
				return err
			}
		}
	}
	return nil
}
