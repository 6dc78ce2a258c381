package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore/member"
)

// heardTimeout bounds the time in which another server answers which nodes it hears.
const heardTimeout = time.Second

// liveness knows which nodes are alive. Gossip tells it about the nodes of servers, the
// tunnels that agents keep tell it about agents. leader/nodes and control/cluster use it.
type liveness struct {
	server    *server
	*notifier // of changes of gossip, tunnels, and the servers' records
}

func newLiveness(s *server) *liveness { return &liveness{server: s, notifier: newNotifier()} }

// notifier tells any number of goroutines about the next change, by closing a channel.
type notifier struct {
	mu      sync.Mutex
	changed chan struct{}
}

func newNotifier() *notifier { return &notifier{changed: make(chan struct{})} }

// Changed returns the channel that is closed at the next change. It implements nodes.Liveness.
func (n *notifier) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *notifier) fire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.changed)
	n.changed = make(chan struct{})
}

// run notifies of changes until ctx ends.
func (l *liveness) run(ctx context.Context) error {
	for {
		gossip, tunnel, records := l.server.gossip.Load().Changed(), l.server.tunnel.Changed(), l.server.recordsChanged.Changed()
		l.fire() // after the channels were read, so that no change is lost
		select {
		case <-ctx.Done():
			return nil
		case <-gossip:
		case <-tunnel:
		case <-records:
		}
	}
}

// Alive implements nodes.Liveness.
func (l *liveness) Alive(node string) (alive, known bool) {
	if alive, known = l.server.gossip.Load().Alive(node); known {
		return alive, known
	}
	return l.server.tunnel.Alive(node)
}

// Presences implements cluster.Nodes.
func (l *liveness) Presences() []cluster.Presence {
	var out []cluster.Presence
	for _, p := range l.server.tunnel.Presences() {
		out = append(out, cluster.Presence(p))
	}
	return out
}

// Heard implements cluster.Nodes.
func (l *liveness) Heard(nodes []string) []string { return l.server.tunnel.Heard(nodes) }

// heardElsewhere asks all other live servers at once which of the nodes they hear. Servers that do not answer within
// heardTimeout count as hearing none.
func (s *server) heardElsewhere(ctx context.Context, nodes []string) (heard []string) {
	ctx, cancel := context.WithTimeout(ctx, heardTimeout)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range s.gossip.Load().Members() {
		if m.State != member.StateAlive || m.ServerID == s.store.ServerID() {
			continue
		}
		all.Go(fault.Contained("nodes' signs of life", func() {
			conn, err := s.dialer.Dial(ctx, m.ServerID)
			if err != nil {
				return
			}
			answer, err := clusterpb.NewClusterClient(conn).Hears(ctx, &clusterpb.HearsRequest{Nodes: nodes})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, answer.Nodes...)
		}))
	}
	all.Wait()
	slices.Sort(heard)
	return slices.Compact(heard)
}
