package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/e2e/figures"
)

// measureStart measures starts of every kind, from exec on.
func measureStart(ctx context.Context, b *bench) error {
	for _, kind := range []startKind{fresh, restarted, killed, booted} {
		for run := range b.runs {
			for _, s := range b.systems {
				if s.side() == figures.Theirs && run >= b.upstreamRuns {
					continue
				}
				known, err := s.prepare(ctx, kind)
				if err != nil {
					return err
				}
				if !known {
					continue
				}
				b.progress("start, %s: run %d of %d%s", kind, run+1, b.runs, suffix(s))
				if err := timeStart(ctx, b, s, kind); err != nil {
					return fmt.Errorf("start, %s: %w", kind, err)
				}
				if u, ok := s.(*upstream); ok { // the first minute of upstream would slow the next start of the other system
					if err := u.stop(ctx); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// timeStart measures one start. Heartbeats are in whole seconds; the pause makes those of the last run older than this
// one.
func timeStart(ctx context.Context, b *bench, s system, kind startKind) error {
	pause(ctx, 1100*time.Millisecond)
	began, err := s.exec(ctx)
	if err != nil {
		return err
	}
	add := func(what, aim string) {
		b.table.Add(s.side(), figures.Of("start, "+string(kind)+": "+what, "s", aim), time.Since(began).Seconds())
	}
	cfg, err := awaitAPI(ctx, s)
	if err != nil {
		return err
	}
	add("API ready", "0.5")
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	// Each milestone is awaited separately, so that a slow one does not hide another.
	waits := []struct {
		what string
		wait func() error
	}{
		{"controllers lead", func() error { return s.leading(ctx) }},
		{"default ServiceAccount", func() error { return awaitAccount(ctx, client) }},
		{"Node Ready", func() error { return awaitNode(ctx, client, s.nodeName(), began) }},
	}
	done := make([]chan error, len(waits))
	at := make([]time.Duration, len(waits))
	for i, w := range waits {
		done[i] = make(chan error, 1)
		go func() {
			err := w.wait()
			at[i] = time.Since(began)
			done[i] <- err
		}()
	}
	var faults []error
	for i, w := range waits {
		if err := <-done[i]; err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", w.what, err))
			continue
		}
		b.table.Add(s.side(), figures.Of("start, "+string(kind)+": "+w.what, "s", "1"), at[i].Seconds())
	}
	if err := errors.Join(faults...); err != nil || s.podImage() == "" {
		return err
	}
	if err := startPod(ctx, client, s); err != nil {
		return err
	}
	add("a pod made then runs", "")
	return removePods(ctx, client, "default")
}

// awaitAccount waits for the ServiceAccount that every pod of the namespace needs.
func awaitAccount(ctx context.Context, client kubernetes.Interface) error {
	return awaitEvent(ctx, "default", client.CoreV1().ServiceAccounts("default").Watch, func(watch.Event) bool { return true })
}

// awaitNode waits until a heartbeat of this start makes the node Ready.
func awaitNode(ctx context.Context, client kubernetes.Interface, name string, began time.Time) error {
	return awaitEvent(ctx, name, client.CoreV1().Nodes().Watch, func(event watch.Event) bool {
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			return false
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(began.Truncate(time.Second))
			}
		}
		return false
	})
}

type watchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error)

// awaitEvent watches one object, starting with its present state, until an event satisfies the condition.
func awaitEvent(ctx context.Context, name string, open watchFunc, satisfies func(watch.Event) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		w, err := open(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
		if err != nil {
			pause(ctx, tick)
			continue
		}
		for event := range w.ResultChan() {
			if (event.Type == watch.Added || event.Type == watch.Modified) && satisfies(event) {
				w.Stop()
				return nil
			}
		}
	}
	return fmt.Errorf("%s: %w", name, ctx.Err())
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
