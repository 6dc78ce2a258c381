package nodes

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Liveness is a source that knows of nodes faster than their Leases do, such as gossip. It may be nil.
type Liveness interface {
	// State reports whether the node is alive; known is false when the source has never heard of it, and then its
	// Lease decides.
	State(node string) (alive, known bool)
	// Changed yields the name of every node whose state changed. It is closed never; the reader stops with its context.
	Changed() <-chan string
}

// pulse remembers when each node last gave a sign of life, by this process's own clock: a node's clock may be wrong.
type pulse struct {
	mu    sync.Mutex
	grace time.Duration
	nodes map[string]*beat
}

type beat struct {
	heard time.Time
	every time.Duration // the duration its Lease promises
}

func newPulse(grace time.Duration) *pulse {
	return &pulse{grace: grace, nodes: map[string]*beat{}}
}

// heard records a sign of life.
func (p *pulse) heard(node string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(node, now).heard = now
}

// renewed records a Lease that changed.
func (p *pulse) renewed(l *coordinationv1.Lease, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.of(l.Name, now)
	b.heard, b.every = now, 0
	if l.Spec.LeaseDurationSeconds != nil {
		b.every = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
}

func (p *pulse) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nodes, node)
}

// left is how long the node may still stay silent; zero or less means its time is up. A node never heard of gets the full
// time from now on.
func (p *pulse) left(node string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.of(node, now)
	return b.heard.Add(max(p.grace, b.every+b.every/4)).Sub(now)
}

func (p *pulse) of(node string, now time.Time) *beat {
	b := p.nodes[node]
	if b == nil {
		b = &beat{heard: now}
		p.nodes[node] = b
	}
	return b
}
