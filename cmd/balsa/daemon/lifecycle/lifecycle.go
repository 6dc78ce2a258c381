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

// Group is what runs in this process, in the order in which it was started.
// They stop in the reverse order, each only when the one above it has returned:
// nothing loses what it stands on.
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

// Start runs fn until the parts stop. An error of fn, a panic that nothing
// below contains, or its early return, is a failure of the whole.
func (p *Group) Start(name string, fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.list = append(p.list, part{name: name, stop: cancel, done: done})
	go func() {
		defer close(done)
		err := fault.Contain("part/"+name, func() error { return fn(ctx) })
		if ctx.Err() != nil {
			if err != nil {
				p.log.Warn("stopped with an error", "part", name, "err", err)
			}
			return
		}
		if err == nil {
			err = fmt.Errorf("%s ended by itself", name)
		}
		select {
		case p.failed <- err:
		default: // one failure is enough to stop
		}
	}()
}

// Keep is Start for a part that can begin anew: after a panic it does, with back-off.
func (p *Group) Keep(name string, fn func(context.Context) error) {
	p.Start(name, func(ctx context.Context) error { return fault.Keep(ctx, "part/"+name, fn) })
}

// Wait returns when ctx ends, with nil, when a part failed, with its error, or
// when over says why it is enough.
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

// stopPatience is how long one part may take to end. A process that ends without
// it is one that was killed, which loses nothing.
const stopPatience = 15 * time.Second

// Stop ends all parts, the last started first.
func (p *Group) Stop() {
	for i := len(p.list) - 1; i >= 0; i-- {
		p.list[i].stop()
		select {
		case <-p.list[i].done:
		case <-time.After(stopPatience):
			p.log.Error("does not end and is left behind", "part", p.list[i].name, "after", stopPatience)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		}
	}
}

// Await waits for a channel, unless it is nil, and reports whether it was
// closed before ctx ended.
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
