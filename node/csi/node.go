package csi

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Node mounts volumes of CSI drivers on this node. Its methods may be called at the same time.
type Node struct {
	cfg   Config
	log   *slog.Logger
	locks volumeLocks

	mu      sync.Mutex
	drivers map[string]*driver
	staged  map[string]bool // staging directories that a driver has confirmed in this life of the agent
}

// New returns a Node for cfg. It starts nothing.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Node{cfg: cfg, log: cfg.Logger, drivers: map[string]*driver{}, staged: map[string]bool{}}, nil
}

// driver returns a registered driver.
func (n *Node) driver(name string) (*driver, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

func (n *Node) isStaged(dir string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.staged[dir]
}

func (n *Node) setStaged(dir string, staged bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if staged {
		n.staged[dir] = true
	} else {
		delete(n.staged, dir)
	}
}

// UniqueName is the name of a volume in the status of Nodes.
func UniqueName(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
}

// volumeKey names a volume on this node.
type volumeKey struct{ driver, handle string }

// volumeLocks has one lock for each volume, while it is asked for.
type volumeLocks struct {
	mu   sync.Mutex
	held map[volumeKey]*volumeLock
}

type volumeLock struct {
	users int
	slot  chan struct{} // holds one value while the lock is taken
}

// lock waits for the volume's lock; unlock gives it back. An error means that ctx ended first.
func (l *volumeLocks) lock(ctx context.Context, key volumeKey) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[volumeKey]*volumeLock{}
	}
	v := l.held[key]
	if v == nil {
		v = &volumeLock{slot: make(chan struct{}, 1)}
		l.held[key] = v
	}
	v.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if v.users--; v.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case v.slot <- struct{}{}:
		return func() { <-v.slot; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
