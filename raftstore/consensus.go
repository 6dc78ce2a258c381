package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// How long a write waits for Raft: for a leader to appear, to be queued, and
// between two looks at whether the disk still takes writes.
const (
	leaderPatience = 5 * time.Second
	leaderPause    = 10 * time.Millisecond
	enqueueTimeout = 5 * time.Second
	faultInterval  = 250 * time.Millisecond
)

// consensus puts entries into the log. It is what the store knows of Raft:
// write an entry, learn what applying it gave; know that reads are current.
type consensus struct {
	raft *raft.Raft
	disk *disk // nil in memory
	sole bool  // this peer is the only voter

	mu      sync.RWMutex // guards closing against tasks
	closing bool
	closed  chan struct{}
	tasks   sync.WaitGroup
}

// begin admits one goroutine or refuses because the store closes. end pairs
// with it.
func (c *consensus) begin() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closing {
		return ErrClosed
	}
	c.tasks.Add(1)
	return nil
}

func (c *consensus) end() { c.tasks.Done() }

func (c *consensus) refused() error {
	if c.disk == nil {
		return nil
	}
	return c.disk.refused()
}

func (c *consensus) leading() bool { return c.raft.State() == raft.Leader }

type outcome struct {
	applied applied
	err     error
}

// propose appends entry to the log and returns what applying it here gave. An
// error from Raft that is not ErrNoLeader before the append, or the end of ctx,
// leaves open whether the entry was applied.
func (c *consensus) propose(ctx context.Context, entry []byte) (applied, error) {
	deadline := time.Now().Add(leaderPatience)
	for {
		if err := ctx.Err(); err != nil {
			return applied{}, err
		}
		if err := c.refused(); err != nil {
			return applied{}, err
		}
		o := c.append(ctx, entry)
		retry := errors.Is(o.err, raft.ErrNotLeader) || errors.Is(o.err, raft.ErrLeadershipTransferInProgress)
		if !retry {
			return o.applied, c.explain(o.err)
		}
		if time.Now().After(deadline) {
			return applied{}, fmt.Errorf("%w: waited %v for one", ErrNoLeader, leaderPatience)
		}
		select {
		case <-ctx.Done():
			return applied{}, ctx.Err()
		case <-c.closed:
			return applied{}, ErrClosed
		case <-time.After(leaderPause):
		}
	}
}

// append hands entry to Raft once.
func (c *consensus) append(ctx context.Context, entry []byte) outcome {
	if err := c.begin(); err != nil {
		return outcome{err: err}
	}
	done := make(chan outcome, 1)
	go func() {
		defer c.end()
		f := c.raft.Apply(entry, enqueueTimeout)
		if err := f.Error(); err != nil {
			done <- outcome{err: err}
			return
		}
		a, ok := f.Response().(applied)
		if !ok {
			done <- outcome{err: fmt.Errorf("raftstore: entry answered with %T", f.Response())}
			return
		}
		done <- outcome{applied: a}
	}()
	look := time.NewTicker(faultInterval)
	defer look.Stop()
	for {
		select {
		case o := <-done:
			return o
		case <-ctx.Done():
			return outcome{err: ctx.Err()}
		case <-look.C:
			if err := c.refused(); err != nil {
				return outcome{err: err}
			}
		}
	}
}

// explain turns an error of Raft's into one of ours.
func (c *consensus) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrRaftShutdown):
		return ErrClosed
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		if r := c.refused(); r != nil {
			return r
		}
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		if r := c.refused(); r != nil {
			return r
		}
		return fmt.Errorf("%w: the log did not take the entry within %v", ErrNoLeader, enqueueTimeout)
	}
	return err
}

// current returns when what is applied here includes every write acknowledged
// before the call. A sole voter acknowledges nothing before it is applied here,
// so it is always current.
func (c *consensus) current(ctx context.Context) error {
	if c.sole {
		return nil
	}
	if err := c.begin(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer c.end()
		done <- c.raft.Barrier(enqueueTimeout).Error()
	}()
	select {
	case err := <-done:
		if errors.Is(err, raft.ErrNotLeader) {
			return ErrNoLeader
		}
		return c.explain(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends Raft and waits for every goroutine that was admitted.
func (c *consensus) close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	close(c.closed)
	if c.disk != nil {
		close(c.disk.stop)
	}
	err := c.raft.Shutdown().Error()
	c.tasks.Wait()
	if c.disk != nil {
		err = errors.Join(err, c.disk.close())
	}
	return err
}
