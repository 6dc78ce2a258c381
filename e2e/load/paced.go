package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Paced lets the writers write at an even pace, perSecond in all, until the deadline, as long as one of them is free.
// It returns the number of writes. Each writer has its own goroutine; the first error ends all.
func Paced(ctx context.Context, perSecond int, deadline time.Time, writers []func(context.Context) error) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan struct{})
	var sent atomic.Int64
	var joined sync.WaitGroup
	for _, w := range writers {
		joined.Go(func() {
			for range due {
				if err := w(ctx); err != nil {
					cancel(err)
					return
				}
				sent.Add(1)
			}
		})
	}
	pace(ctx, perSecond, deadline, due)
	joined.Wait()
	return sent.Load(), context.Cause(ctx)
}

// pace sends on due at an even pace, and closes due at the deadline or when ctx ends.
func pace(ctx context.Context, perSecond int, deadline time.Time, due chan<- struct{}) {
	defer close(due)
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	end := time.NewTimer(time.Until(deadline))
	defer end.Stop()
	for {
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
		select {
		case due <- struct{}{}:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
