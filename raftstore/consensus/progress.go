package consensus

import (
	"context"
	"sync"
)

// Progress is how far the log has been applied here, by which the proposers of the applied commands have their answers.
type Progress struct {
	mu          sync.Mutex
	index, term uint64
	waiting     bool          // some goroutine waits for moved
	moved       chan struct{} // closed at the next advance if a goroutine waits
}

// NewProgress returns a Progress at index 0.
func NewProgress() *Progress { return &Progress{moved: make(chan struct{})} }

// Advance notes that entry number index, of the given term, has been applied.
func (p *Progress) Advance(index, term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index, p.term = max(p.index, index), max(p.term, term)
	if p.waiting {
		close(p.moved)
		p.moved, p.waiting = make(chan struct{}), false
	}
}

// Await returns nil when entry number index has been applied here, or the error of ctx.
func (p *Progress) Await(ctx context.Context, index uint64) error {
	for {
		p.mu.Lock()
		if p.index >= index {
			p.mu.Unlock()
			return nil
		}
		p.waiting = true
		moved := p.moved
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// At returns the last applied entry and its term.
func (p *Progress) At() (index, term uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index, p.term
}

// Next returns the last applied entry, its term, and a channel that closes when a further entry has been applied.
func (p *Progress) Next() (index, term uint64, moved <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = true
	return p.index, p.term, p.moved
}
