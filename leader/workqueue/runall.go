package workqueue

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
)

// RunAll returns a runner that runs several: the first error stops all, and Run joins them.
func RunAll(runners ...Runner) Runner { return runAll(runners) }

type runAll []Runner

func (t runAll) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range t {
		g.Go(fault.ContainedErr("controller", func() error { return r.Run(ctx) }))
	}
	return g.Wait()
}

// Informer runs an informer that only one controller needs, so that it is not part of the shared factory.
func Informer(i cache.SharedIndexInformer) Runner {
	return RunnerFunc(func(ctx context.Context) error {
		i.RunWithContext(ctx)
		return nil
	})
}

// RunnerFunc is a function that is a Runner.
type RunnerFunc func(ctx context.Context) error

// Run calls the function.
func (f RunnerFunc) Run(ctx context.Context) error { return f(ctx) }
