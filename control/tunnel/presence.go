package tunnel

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Presence is whether a node that has connected to this server is alive.
type Presence struct {
	Node  string
	Alive bool
	Since time.Time // when this server noticed the change
}

// presence is the state of one node. A zero away means that the node answers this server.
type presence struct {
	Presence
	away time.Time // since when the node does not answer this server
	due  time.Time // when the other servers are asked whether it answers them; zero: they are not asked
}

// Dead nodes are forgotten after remembered, once there are spareRoom more nodes than twice the connected ones.
const (
	remembered = 24 * time.Hour
	spareRoom  = 64
)

// setPresent records that the node answers. The caller holds t.mu.
func (t *Tunnel) setPresent(name string, now time.Time) {
	p := t.presences[name]
	if p == nil {
		p = &presence{Presence: Presence{Node: name}}
		t.presences[name] = p
		t.sweep(now)
	}
	p.away, p.due = time.Time{}, time.Time{}
	if !p.Alive {
		p.Alive, p.Since = true, now
		t.bump()
	}
}

// setAbsent records that the node no longer answers this server. The other servers are asked after pause, in which the node
// may come back. The caller holds t.mu.
func (t *Tunnel) setAbsent(name string, now time.Time, pause time.Duration) {
	if p := t.presences[name]; p != nil && p.away.IsZero() {
		p.away, p.due = now, now.Add(pause)
		select {
		case t.nudge <- struct{}{}:
		default:
		}
	}
}

// sweep removes nodes that have been dead for long, if there are many. The caller holds t.mu.
func (t *Tunnel) sweep(now time.Time) {
	if len(t.presences) < 2*len(t.nodes)+spareRoom {
		return
	}
	for name, p := range t.presences {
		if !p.Alive && now.Sub(p.Since) > remembered {
			delete(t.presences, name)
		}
	}
}

func (t *Tunnel) bump() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// due returns the nodes about which the other servers are asked now, and when the next question is due; zero: none is.
func (t *Tunnel) due(now time.Time) (names []string, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range t.presences {
		switch {
		case p.due.IsZero():
		case !now.Before(p.due):
			names = append(names, name)
		case next.IsZero() || p.due.Before(next):
			next = p.due
		}
	}
	slices.Sort(names)
	return names, next
}

// settle processes the answer of the other servers. They are asked again later about a node that answers one of them. A
// node that answers none is dead until it comes back.
func (t *Tunnel) settle(asked, heard []string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range asked {
		p := t.presences[name]
		if p == nil || p.due.IsZero() { // it has come back
			continue
		}
		if slices.Contains(heard, name) {
			p.due = now.Add(t.cfg.AskAgain)
			continue
		}
		p.due = time.Time{}
		if p.Alive {
			p.Alive, p.Since = false, now
			t.cfg.Logger.Info("a node answers no server; it counts as dead until it connects or answers", "node", name, "here", now.Sub(p.away).Round(time.Millisecond))
			t.bump()
		}
	}
}

// Run asks the other servers about nodes that do not answer this server, until ctx ends. It sleeps while there are none.
func (t *Tunnel) Run(ctx context.Context) error {
	for {
		names, next := t.due(time.Now())
		if len(names) > 0 {
			var heard []string
			if t.cfg.Elsewhere != nil {
				asking, cancel := context.WithTimeout(ctx, t.cfg.AskAgain)
				heard = t.cfg.Elsewhere(asking, names)
				cancel()
			}
			if ctx.Err() == nil {
				t.settle(names, heard, time.Now())
			}
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		if len(names) > 0 {
			timer = time.After(0) // others may have become due meanwhile
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.nudge:
		case <-timer:
		}
	}
}

// Heard returns the nodes among names that are connected to this server and answer it.
func (t *Tunnel) Heard(names []string) (heard []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if p := t.presences[name]; p != nil && p.away.IsZero() {
			heard = append(heard, name)
		}
	}
	return heard
}

// Presences returns the presence of each node that this server knows, sorted by name.
func (t *Tunnel) Presences() []Presence {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Presence, 0, len(t.presences))
	for _, p := range t.presences {
		out = append(out, p.Presence)
	}
	slices.SortFunc(out, func(a, b Presence) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Alive reports whether a node is alive; known is false when it never connected to this server.
func (t *Tunnel) Alive(name string) (alive, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.presences[name]
	return p != nil && p.Alive, p != nil
}

// Changed returns a channel that is closed when Alive or Presences may answer otherwise than before the call.
func (t *Tunnel) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// mostBeats bounds the pings that this server sends each second.
const mostBeats = 2000

// beat returns the pause between two pings to a node. It grows with thousands of nodes.
func (t *Tunnel) beat() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.cfg.Beat, time.Duration(len(t.nodes))*time.Second/mostBeats)
}

// recordPing records the result of a connection's pings, unless the node has a newer connection.
func (t *Tunnel) recordPing(n *node, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[n.name] != n {
		return
	}
	if heard {
		t.setPresent(n.name, time.Now())
		return
	}
	t.setAbsent(n.name, time.Now(), 0) // no further pause: it has missed several pings already
}
