package peer

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/balsahq/balsa/fault"
)

const (
	probes       = 4 // a process that is ending may still accept for a moment
	probeTimeout = 250 * time.Millisecond
	probePause   = 15 * time.Millisecond
)

// probePeer dials a peer that closed a connection of Raft's, and calls Handler.PeerEnded when its process has ended: the machine is there
// and refuses connections to its port. A machine that is gone, or is merely slow, refuses nothing.
func (n *Network) probePeer(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over.Load() || n.probing[id] {
		return
	}
	n.probing[id] = true
	n.wg.Go(fault.Contained("peers", func() {
		ended := n.portRefused(id)
		n.mu.Lock()
		delete(n.probing, id)
		n.mu.Unlock()
		if h := n.service.handler.Load(); ended && h != nil {
			(*h).PeerEnded(id)
		}
	}))
}

// portRefused reports whether the peer's machine refuses connections to its port.
func (n *Network) portRefused(id string) bool {
	addr, ok := n.cfg.Resolve(id)
	for range probes {
		if !ok {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		c, err := n.cfg.Dial(ctx, "tcp", addr)
		cancel()
		if err != nil {
			return errors.Is(err, syscall.ECONNREFUSED)
		}
		_ = c.Close()
		select {
		case <-time.After(probePause):
		case <-n.done:
			return false
		}
	}
	return false
}
