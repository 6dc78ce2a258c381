package main

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/e2e/figures"
)

// idleSamples is the number of windows in the last third of the wait.
const idleSamples = 5

// measureIdle leaves all systems without requests at the same time, then measures memory and CPU time. One pod runs on
// each.
func measureIdle(ctx context.Context, b *bench) error {
	if err := b.upAll(ctx); err != nil {
		return err
	}
	for _, s := range b.systems {
		cfg, err := s.restConfig()
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		if err := startPod(ctx, client, s); err != nil {
			return err
		}
		defer func() { _ = removePods(context.WithoutCancel(ctx), client, "default") }()
	}
	b.progress("idle for %s", b.idle)
	pause(ctx, b.idle*2/3)
	window := b.idle / 3 / idleSamples
	for range idleSamples {
		began, before := time.Now(), map[system][]time.Duration{}
		for _, s := range b.systems {
			for _, p := range s.parts() {
				before[s] = append(before[s], figures.CPUTime(p.pids))
			}
		}
		pause(ctx, window)
		passed := time.Since(began)
		for _, s := range b.systems {
			for i, p := range s.parts() {
				used := figures.CPUTime(p.pids) - before[s][i]
				b.table.Add(s.side(), figures.Of("idle CPU, "+p.name, "% of a core", aimOf(p, "0.5")), 100*float64(used)/float64(passed))
			}
		}
		if err := addMemory(b, "idle PSS, "); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func addMemory(b *bench, prefix string) error {
	for _, s := range b.systems {
		for _, p := range s.parts() {
			mib, err := figures.PSS(p.pids)
			if err != nil {
				return err
			}
			b.table.Add(s.side(), figures.Of(prefix+p.name, "MiB", aimOf(p, "100")), mib)
		}
	}
	return nil
}

// aimOf returns aim for the part that has one: server and agent together.
func aimOf(p part, aim string) string {
	if p.name == "server and agent" {
		return aim
	}
	return ""
}
