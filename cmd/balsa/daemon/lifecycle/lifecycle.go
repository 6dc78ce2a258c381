package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/pprof"
	"time"

	"github.com/balsahq/balsa/fault"
)

// Group holds the parts that run in this process, in the order in which they were
// started. They stop in the reverse order, each only after the part above it has
// returned, so that no part outlives one that it uses. Its methods are for one
// goroutine.
type Group struct {
	log    *slog.Logger
	list   []part
	failed chan error
}

type part struct {
	name string
	stop context.CancelFunc
	done chan struct{}
}

func New(log *slog.Logger) *Group { return &Group{log: log, failed: make(chan error, 1)} }

// Start runs fn in a goroutine until Stop. Wait returns an error when fn returns
// before that, with an error or without, or when it panics.
func (p *Group) Start(name string, fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.list = append(p.list, part{name: name, stop: cancel, done: done})
	go func() {
		defer close(done)
		err := fault.Contain("part/"+name, func() error { return fn(ctx) })
		if ctx.Err() != nil {
			if err != nil {
				p.log.Warn("a part stopped with an error", "part", name, "err", err)
			}
			return
		}
		if err == nil {
			err = fmt.Errorf("%s ended by itself", name)
		}
		select {
		case p.failed <- err:
		default: // the first failure stops the process; later ones are dropped
		}
	}()
}

// Keep is Start for a part that can run again after a panic: it does so with back-off (fault.Keep).
func (p *Group) Keep(name string, fn func(context.Context) error) {
	p.Start(name, func(ctx context.Context) error { return fault.Keep(ctx, "part/"+name, fn) })
}

// Wait blocks until ctx ends and returns nil, until a part fails and returns its
// error, or until over delivers the reason to stop, which it returns.
func (p *Group) Wait(ctx context.Context, over <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	case err := <-over:
		return err
	}
}

// stopPatience bounds the time that one part has to end. A process that ends while
// a part still runs loses no more than a killed one, which loses nothing.
const stopPatience = 15 * time.Second

// Stop ends all parts, the last started first.
func (p *Group) Stop() {
	for i := len(p.list) - 1; i >= 0; i-- {
		p.list[i].stop()
		select {
		case <-p.list[i].done:
		case <-time.After(stopPatience):
			p.log.Error("a part does not end; the process goes on without it", "part", p.list[i].name, "after", stopPatience)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		}
	}
}

// Await waits until done is closed and returns true, or until ctx ends and returns
// false. A nil channel counts as closed.
func Await(ctx context.Context, done <-chan struct{}) bool {
	if done == nil {
		return ctx.Err() == nil
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
