package nodes

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Liveness is a source that detects dead nodes faster than their Leases: the connections that nodes keep to servers, each
// authenticated by the node's certificate, so that no node can affect another node's state. It may be nil.
//
// Its bad news count at once: a node it says is dead is silent, until the node itself gives a sign of life later than
// that verdict, which only a node that is there can do. Its good news end such a silence, but prove nothing about the
// agent: a node that is connected and never renews its Lease is silent all the same.
type Liveness interface {
	// Alive reports whether the node is alive; known is false when the source has never heard of it, and then its Lease
	// decides.
	Alive(node string) (alive, known bool)
	// Changed is closed when Alive may answer otherwise than before the call. Ask again for the change after that.
	Changed() <-chan struct{}
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
	died  time.Time     // when the liveness source gave it up; zero while it has not
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

// record records the answer of the liveness source and reports whether it changed.
func (p *pulse) record(node string, dead bool, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.of(node, now)
	if dead == !b.died.IsZero() {
		return false
	}
	b.died = time.Time{}
	if dead {
		b.died = now
	} else {
		b.heard = now // back: it gets the time to say so itself
	}
	return true
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
	return p.leftOf(p.of(node, now), now)
}

func (p *pulse) leftOf(b *beat, now time.Time) time.Duration {
	if !b.died.IsZero() && !b.heard.After(b.died) {
		return 0
	}
	return b.heard.Add(max(p.grace, b.every+b.every/4)).Sub(now)
}

// dead reports whether the node's time is up, without starting one for a node never heard of.
func (p *pulse) dead(node string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.nodes[node]
	return b != nil && p.leftOf(b, now) <= 0
}

func (p *pulse) of(node string, now time.Time) *beat {
	b := p.nodes[node]
	if b == nil {
		b = &beat{heard: now}
		p.nodes[node] = b
	}
	return b
}
