package peer

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/balsahq/balsa/fault"
)

const (
	knocks    = 4 // a process that is ending may still be connected to for a moment
	knockTime = 250 * time.Millisecond
	knockWait = 15 * time.Millisecond
)

// missed looks whether a peer that closed a connection of Raft's still has a
// process, and tells the handler when it has not: its machine is there and
// refuses connections to its port. A machine that is gone, or is merely slow,
// refuses nothing.
func (n *Network) missed(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over.Load() || n.knock[id] {
		return
	}
	n.knock[id] = true
	n.wg.Go(fault.Contained("peers", func() {
		ended := n.ended(id)
		n.mu.Lock()
		delete(n.knock, id)
		n.mu.Unlock()
		if h := n.service.handler.Load(); ended && h != nil {
			(*h).PeerEnded(id)
		}
	}))
}

// ended reports whether the peer's port is refused.
func (n *Network) ended(id string) bool {
	addr, ok := n.cfg.Resolve(id)
	for range knocks {
		if !ok {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), knockTime)
		c, err := n.cfg.Dial(ctx, "tcp", addr)
		cancel()
		if err != nil {
			return errors.Is(err, syscall.ECONNREFUSED)
		}
		_ = c.Close()
		select {
		case <-time.After(knockWait):
		case <-n.done:
			return false
		}
	}
	return false
}
