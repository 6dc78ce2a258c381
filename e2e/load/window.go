package load

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Outcome is the result of one window of load.
type Outcome struct {
	Operations int
	Passed     time.Duration
	Latencies  []float64     // milliseconds
	CPU        time.Duration // of the servers
}

// Rate returns the operations a second.
func (o Outcome) Rate() float64 { return float64(o.Operations) / o.Passed.Seconds() }

// CPUEach returns the servers' CPU time for one operation, in microseconds.
func (o Outcome) CPUEach() float64 {
	return float64(o.CPU.Microseconds()) / float64(max(1, o.Operations))
}

// Window lets clients call do, one operation after the other, until the window has passed. The first error ends it. cpu
// returns the CPU time that the servers have used so far.
func Window(ctx context.Context, clients int, window time.Duration, cpu func() time.Duration, do func(ctx context.Context, client int) error) (Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	latencies := make([][]float64, clients)
	began, used := time.Now(), cpu()
	deadline := began.Add(window)
	var joined sync.WaitGroup
	for i := range clients {
		joined.Go(func() {
			for now := time.Now(); now.Before(deadline) && ctx.Err() == nil; {
				if err := do(ctx, i); err != nil {
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
	o := Outcome{Passed: time.Since(began), CPU: cpu() - used}
	for _, l := range latencies {
		o.Latencies = append(o.Latencies, l...)
	}
	o.Operations = len(o.Latencies)
	if cause := context.Cause(ctx); cause != nil {
		return o, cause
	}
	if o.Operations == 0 {
		return o, errors.New("no request was answered within the window")
	}
	return o, nil
}

// Times calls do n times, with i from 0 on, divided among the clients.
func Times(ctx context.Context, clients, n int, do func(ctx context.Context, client, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var joined sync.WaitGroup
	for c := range clients {
		joined.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, c, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	joined.Wait()
	return context.Cause(ctx)
}
