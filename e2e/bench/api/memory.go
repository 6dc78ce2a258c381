package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

// memory adds a row with the memory of the servers' processes.
func (b *bench) memory(s *system, name string) error {
	mib, err := figures.PSS(s.pids())
	if err != nil {
		return err
	}
	b.add(s, name, "MiB", aimMemory, mib)
	if s.pprof == "" {
		return nil
	}
	return b.fetchProfile(s, name, "heap")
}

// measureIdle measures both clusters after a time without requests.
func measureIdle(ctx context.Context, b *bench) error {
	b.progress("idle for %v", b.idle)
	pause(ctx, b.idle*2/3)
	before := map[*system]time.Duration{}
	for _, s := range b.systems {
		before[s] = s.cpu()
	}
	began := time.Now()
	pause(ctx, b.idle/3)
	for _, s := range b.systems {
		b.add(s, "idle CPU", "% of a core", aimCPU, 100*float64(s.cpu()-before[s])/float64(time.Since(began)))
		if err := b.memory(s, "idle memory, PSS"); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// measureLoaded measures the servers' memory after the families of load.
func measureLoaded(ctx context.Context, b *bench) error {
	if !b.loaded {
		return nil
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	for _, s := range b.systems {
		if err := b.memory(s, "memory after all loads above, their objects still there, PSS"); err != nil {
			return err
		}
	}
	return nil
}

const (
	namespaceChurn = "bench-churn"
	churnClients   = 64
)

// measureChurn creates and deletes many objects, and measures the memory that stays.
func measureChurn(ctx context.Context, b *bench) error {
	b.loaded = true
	n := 30_000
	if b.quick {
		n = 5000
	}
	path := load.ConfigMapsPath(namespaceChurn)
	f := forms[0]
	for _, s := range b.systems {
		b.progress("%d objects come and go on %s", n, s.name)
		if _, err := s.connect(ctx, churnClients); err != nil {
			return err
		}
		if err := s.namespace(ctx, namespaceChurn); err != nil {
			return err
		}
		steps := []struct {
			name    string
			request func(i int) load.Request
		}{
			{"create", func(i int) load.Request {
				return f.request(http.MethodPost, path, f.template.Fill(fixedName(i), stamp()))
			}},
			{"delete", func(i int) load.Request { return f.request(http.MethodDelete, path+"/"+fixedName(i), nil) }},
		}
		for _, step := range steps {
			cpu, began := s.cpu(), time.Now()
			err := load.Times(ctx, churnClients, n, func(_ context.Context, client, i int) error {
				return s.conns[client].Do(step.request(i), nil)
			})
			if err != nil {
				return fmt.Errorf("%s, %s: %w", step.name, s.name, err)
			}
			name := fmt.Sprintf("%d times %s, JSON, %d clients: ", n, step.name, churnClients)
			b.add(s, name+"rate", "/s", aimRate, float64(n)/time.Since(began).Seconds())
			b.add(s, name+"server CPU", "µs each", aimCPU, float64((s.cpu()-cpu).Microseconds())/float64(n))
		}
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	for _, s := range b.systems {
		if err := b.memory(s, fmt.Sprintf("memory after %d objects came and went, PSS", n)); err != nil {
			return err
		}
	}
	return nil
}
