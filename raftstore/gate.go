package raftstore

import (
	"context"
	"sync"
)

// gate is how far the log has been applied here, and where those wait who need
// it to be further.
type gate struct {
	mu          sync.Mutex
	index, term uint64
	waiting     bool
	moved       chan struct{} // closed at the next advance, when somebody waits
}

func newGate() *gate { return &gate{moved: make(chan struct{})} }

func (g *gate) advance(index, term uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.index, g.term = max(g.index, index), max(g.term, term)
	if g.waiting {
		close(g.moved)
		g.moved, g.waiting = make(chan struct{}), false
	}
}

// await returns when entry number index has been applied here, or ctx ended.
func (g *gate) await(ctx context.Context, index uint64) error {
	for {
		g.mu.Lock()
		if g.index >= index {
			g.mu.Unlock()
			return nil
		}
		g.waiting = true
		moved := g.moved
		g.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// at returns what has been applied and told to those it is of.
func (g *gate) at() (index, term uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.index, g.term
}

// next returns what has been applied and a channel that closes when more has.
func (g *gate) next() (index, term uint64, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = true
	return g.index, g.term, g.moved
}
