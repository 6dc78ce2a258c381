package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
)

// outcome is what one window of load showed.
type outcome struct {
	operations int
	passed     time.Duration
	latencies  []float64     // milliseconds
	cpu        time.Duration // of the servers
}

// load lets every client call next and send what it returns, one request after
// the other, until the window has passed. The first failure ends it.
func load(ctx context.Context, s system, clients []*client, e *encoding, window time.Duration, next func(client int) request) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	latencies := make([][]float64, len(clients))
	began, cpu := time.Now(), figures.CPUTime(s.controlPlane())
	deadline := began.Add(window)
	var joined sync.WaitGroup
	for i, c := range clients {
		joined.Go(func() {
			for now := time.Now(); now.Before(deadline); {
				if err := c.do(ctx, e, next(i)); err != nil {
					cancel(err)
					return
				}
				then := now
				now = time.Now()
				latencies[i] = append(latencies[i], float64(now.Sub(then))/1e6)
			}
		})
	}
	joined.Wait()
	o := outcome{passed: time.Since(began), cpu: figures.CPUTime(s.controlPlane()) - cpu}
	for _, l := range latencies {
		o.latencies = append(o.latencies, l...)
	}
	o.operations = len(o.latencies)
	if cause := context.Cause(ctx); cause != nil {
		return o, cause
	}
	if o.operations == 0 {
		return o, errors.New("no request was answered within the window")
	}
	return o, nil
}

// times sends exactly n requests, shared by the clients.
func times(ctx context.Context, clients []*client, e *encoding, n int, make func(i int) request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var joined sync.WaitGroup
	for share, c := range clients {
		joined.Go(func() {
			for i := share; i < n; i += len(clients) {
				if err := c.do(ctx, e, make(i)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	joined.Wait()
	return context.Cause(ctx)
}
