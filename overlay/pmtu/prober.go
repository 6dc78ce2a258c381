package pmtu

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routes"
)

const (
	// confirmAfter is the time after which a path is searched again; RFC 8899 recommends ten minutes.
	confirmAfter = 5 * time.Minute
	// retryAfterSilence is the pause before a silent peer is probed again. It doubles each time, up to confirmAfter.
	retryAfterSilence = time.Second
	// recheckAfter is the time after which a path is searched again whose MTU is below the link's.
	recheckAfter = 20 * time.Second
	// startSpacing is the time between the first probes to several peers.
	startSpacing = 5 * time.Millisecond
)

// Config configures a Prober.
type Config struct {
	// Enter runs a function in the network namespace; the sockets it opens are the namespace's.
	Enter func(func() error) error
	// Changed is called when Paths has changed; it must not block.
	Changed func()
	Logger  *slog.Logger
}

// Prober finds the path MTU to each peer of the tunnel.
type Prober struct {
	cfg  Config
	wake chan struct{}

	mu     sync.Mutex
	tunnel *routes.Tunnel
	paths  map[netip.Addr]int
}

// New returns a Prober that does nothing before Run.
func New(cfg Config) *Prober {
	return &Prober{cfg: cfg, wake: make(chan struct{}, 1), paths: make(map[netip.Addr]int)}
}

// Set sets the tunnel; nil means that there is none. It does not block. An unchanged tunnel costs nothing.
func (p *Prober) Set(t *routes.Tunnel) {
	p.mu.Lock()
	p.tunnel = t
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Paths returns the sizes, in bytes with all headers, of the largest packets that got through, by the nodes' addresses.
// Only paths with a smaller MTU than this node's link are in it. The caller owns the map.
func (p *Prober) Paths() map[netip.Addr]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[netip.Addr]int, len(p.paths))
	for a, size := range p.paths {
		out[a] = size
	}
	return out
}

// setPath notes the size that was found. limit is the MTU of the link.
func (p *Prober) setPath(node string, via netip.Addr, size, limit int) {
	p.mu.Lock()
	before, known := p.paths[via]
	if size >= limit || size == 0 {
		delete(p.paths, via)
	} else {
		p.paths[via] = size
	}
	now, narrow := p.paths[via]
	p.mu.Unlock()
	if before == now && known == narrow {
		return
	}
	if narrow {
		p.cfg.Logger.Info("the path MTU to a node is smaller than the MTU of this node's link; the node's route gets the path MTU", "node", node, "address", via, "bytes", size, "link", limit)
	} else {
		p.cfg.Logger.Info("the path MTU to a node equals the MTU of this node's link again", "node", node, "address", via)
	}
	p.cfg.Changed()
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	r := &run{p: p, states: make(map[netip.Addr]*peerState), answers: make(chan reply), id: uint16(rand.Uint32())}
	defer r.close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if len(r.queue) > 0 {
			wait = time.Until(r.queue[0].due)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
			p.mu.Lock()
			t := p.tunnel
			p.mu.Unlock()
			r.setTunnel(t)
		case a := <-r.answers:
			r.answered(a)
		case <-timer.C:
			r.runDue(time.Now())
		}
	}
}

// run is the state of Run; only its goroutine uses it.
type run struct {
	p       *Prober
	tunnel  *routes.Tunnel
	wire    *wire                     // nil: not open
	states  map[netip.Addr]*peerState // by the peer's address inside
	queue   queue
	answers chan reply
	id      uint16
	last    uint16 // sequence number
}

// peerState is the search for one peer.
type peerState struct {
	peer     routes.Peer
	search   search
	sequence uint16        // of the probes of the size being tried
	pause    time.Duration // the last pause after a search that found less than the link's MTU
	due      time.Time
	place    int // in the queue
}

func (r *run) close() {
	if r.wire != nil {
		r.wire.close()
		r.wire = nil
	}
}

// setTunnel replaces the tunnel. The searches of peers that did not change go on.
func (r *run) setTunnel(t *routes.Tunnel) {
	if !sameEnds(r.tunnel, t) {
		r.close()
		r.states, r.queue = make(map[netip.Addr]*peerState), nil
	}
	r.tunnel = t
	wanted := make(map[netip.Addr]struct{})
	if t != nil && t.Address.IsValid() {
		due := time.Now()
		for i := range t.Peers {
			peer := t.Peers[i]
			if !peer.Pods.Addr().Is4() || !peer.Via.Is4() {
				continue
			}
			peer.MTU = 0 // the result of a search is no change of the peer
			wanted[peer.Address] = struct{}{}
			if s, ok := r.states[peer.Address]; ok && s.peer == peer {
				continue
			} else if ok {
				heap.Remove(&r.queue, s.place)
			}
			s := &peerState{peer: peer, search: newSearch(t.MTU+t.Overhead, t.MTU+t.Overhead), due: due}
			due = due.Add(startSpacing)
			r.states[peer.Address] = s
			heap.Push(&r.queue, s)
		}
	}
	for inside, s := range r.states {
		if _, ok := wanted[inside]; !ok {
			heap.Remove(&r.queue, s.place)
			delete(r.states, inside)
		}
	}
	r.dropGone()
	if len(r.states) == 0 {
		r.close()
	}
}

// dropGone drops the results of peers that are gone.
func (r *run) dropGone() {
	there := make(map[netip.Addr]struct{}, len(r.states))
	for _, s := range r.states {
		there[s.peer.Via] = struct{}{}
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	for via := range r.p.paths {
		if _, ok := there[via]; !ok {
			delete(r.p.paths, via)
		}
	}
}

func sameEnds(a, b *routes.Tunnel) bool {
	return a != nil && b != nil && a.Relayed == b.Relayed && a.VNI == b.VNI && a.Port == b.Port && a.MTU == b.MTU &&
		a.Overhead == b.Overhead && a.Local == b.Local && a.Address == b.Address && a.MAC == b.MAC
}

// runDue carries on the searches that are due.
func (r *run) runDue(now time.Time) {
	for len(r.queue) > 0 && !r.queue[0].due.After(now) {
		s := r.queue[0]
		if s.search.size == 0 { // the last search is over: begin a new one
			start := r.limit()
			if s.search.passed > 0 {
				start = s.search.passed
			}
			s.search = newSearch(start, r.limit())
		} else if s.search.tried > 0 {
			s.search.lost(r.kernelMTU(s), false)
		}
		r.sendNext(s, now)
	}
}

func (r *run) limit() int { return r.tunnel.MTU + r.tunnel.Overhead }

// kernelMTU returns the path MTU that the kernel knows from routers' messages; 0: none.
func (r *run) kernelMTU(s *peerState) int {
	if r.wire == nil {
		return 0
	}
	return r.wire.kernelMTU(s.peer.Via)
}

// sendNext sends the next probe, or ends the search.
func (r *run) sendNext(s *peerState, now time.Time) {
	for s.search.size != 0 {
		s.search.tried++
		err := r.send(s)
		if errors.Is(err, unix.EMSGSIZE) { // the link has changed
			s.search.lost(0, true)
			continue
		}
		if err != nil {
			r.p.cfg.Logger.Debug("cannot send a probe; it counts as lost", "to", s.peer.Via, "err", err)
		}
		r.schedule(s, now.Add(s.search.wait()))
		return
	}
	r.endSearch(s, now)
}

func (r *run) schedule(s *peerState, due time.Time) {
	s.due = due
	heap.Fix(&r.queue, s.place)
}

// endSearch ends a search. A path that takes less than the link is searched again sooner, because a probe may have been lost for
// another reason.
func (r *run) endSearch(s *peerState, now time.Time) {
	first := recheckAfter
	if s.search.passed == 0 {
		first = retryAfterSilence
	}
	if s.search.passed >= r.limit() {
		s.pause = confirmAfter
	} else {
		s.pause = min(max(2*s.pause, first), confirmAfter)
	}
	r.schedule(s, now.Add(s.pause+rand.N(s.pause/10)))
	if s.search.passed > 0 {
		r.p.setPath(s.peer.Node, s.peer.Via, s.search.passed, r.limit())
	}
}

func (r *run) send(s *peerState) error {
	if r.wire != nil && r.wire.failed() {
		r.close()
	}
	if r.wire == nil {
		w, err := r.open()
		if err != nil {
			return err
		}
		r.wire = w
	}
	if s.search.tried == 1 { // all tries of one size share a sequence number, so that a late answer counts too
		r.last++
		s.sequence = r.last
	}
	return r.wire.send(s.peer.Via, uint16(r.tunnel.Port), probe(r.tunnel, &s.peer, s.search.size, r.id, s.sequence))
}

// answered records a reply to a probe of the size being tried. Other replies are ignored.
func (r *run) answered(a reply) {
	s, ok := r.states[a.from]
	if !ok || s.sequence != a.sequence || s.search.tried == 0 {
		return
	}
	s.search.answered()
	r.sendNext(s, time.Now())
}

// queue orders searches by when they are due.
type queue []*peerState

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	s := x.(*peerState)
	s.place = len(*q)
	*q = append(*q, s)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return s
}
