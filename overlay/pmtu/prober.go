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
	// confirm is when a way is looked at again; RFC 8899 has ten minutes.
	confirm = 5 * time.Minute
	// silence is when a peer that does not answer is tried again the first time, then after twice as long, up to confirm.
	silence = time.Second
	// doubt is when a way is looked at again that takes less than the link.
	doubt = 20 * time.Second
	// pace is the time between the first probes to several peers.
	pace = 5 * time.Millisecond
)

// Config is what a Prober needs.
type Config struct {
	// Enter runs a function in the network namespace; the sockets it opens are the namespace's.
	Enter func(func() error) error
	// Changed is called when Paths has changed; it must not block.
	Changed func()
	Logger  *slog.Logger
}

// Prober finds out how large packets may be.
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

// Set tells which tunnel there is; nil is none. It does not block, and costs nothing when nothing has changed.
func (p *Prober) Set(t *routes.Tunnel) {
	p.mu.Lock()
	p.tunnel = t
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Paths are the sizes, in bytes with all headers, of the largest packets seen to get through, by the nodes' addresses;
// only of ways that take less than this node's link does. The map is the caller's.
func (p *Prober) Paths() map[netip.Addr]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[netip.Addr]int, len(p.paths))
	for a, size := range p.paths {
		out[a] = size
	}
	return out
}

// learn keeps what was measured. limit is what the link takes.
func (p *Prober) learn(node string, via netip.Addr, size, limit int) {
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
		p.cfg.Logger.Info("the way to a node takes smaller packets than this node's link", "node", node, "address", via, "bytes", size, "link", limit)
	} else {
		p.cfg.Logger.Info("the way to a node takes what this node's link does", "node", node, "address", via)
	}
	p.cfg.Changed()
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	r := &run{p: p, states: make(map[netip.Addr]*state), answers: make(chan reply), id: uint16(rand.Uint32())}
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
			r.adopt(t)
		case a := <-r.answers:
			r.answered(a)
		case <-timer.C:
			r.tick(time.Now())
		}
	}
}

// run is the state of Run, which one goroutine has.
type run struct {
	p       *Prober
	tunnel  *routes.Tunnel
	wire    *wire                 // nil: not open
	states  map[netip.Addr]*state // by the peer's address inside
	queue   queue
	answers chan reply
	id      uint16
	last    uint16 // sequence number
}

// state is what is known of one way.
type state struct {
	peer     routes.Peer
	search   search
	sequence uint16        // of the probes of the size being tried
	pause    time.Duration // how long was waited last after a search that did not find what was hoped for
	due      time.Time
	place    int // in the queue
}

func (r *run) close() {
	if r.wire != nil {
		r.wire.close()
		r.wire = nil
	}
}

// adopt takes up a new tunnel: peers that are as they were stay undisturbed.
func (r *run) adopt(t *routes.Tunnel) {
	if !sameEnds(r.tunnel, t) {
		r.close()
		r.states, r.queue = make(map[netip.Addr]*state), nil
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
			peer.MTU = 0 // what was found out changes nothing
			wanted[peer.Address] = struct{}{}
			if s, ok := r.states[peer.Address]; ok && s.peer == peer {
				continue
			} else if ok {
				heap.Remove(&r.queue, s.place)
			}
			s := &state{peer: peer, search: newSearch(t.MTU+t.Overhead, t.MTU+t.Overhead), due: due}
			due = due.Add(pace)
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
	r.forget()
	if len(r.states) == 0 {
		r.close()
	}
}

// forget drops what was measured on ways there are no more.
func (r *run) forget() {
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

// tick does what is due.
func (r *run) tick(now time.Time) {
	for len(r.queue) > 0 && !r.queue[0].due.After(now) {
		s := r.queue[0]
		if s.search.size == 0 { // time to look again
			start := r.limit()
			if s.search.passed > 0 {
				start = s.search.passed
			}
			s.search = newSearch(start, r.limit())
		} else if s.search.tried > 0 {
			s.search.lost(r.told(s), false)
		}
		r.proceed(s, now)
	}
}

func (r *run) limit() int { return r.tunnel.MTU + r.tunnel.Overhead }

// told is what the kernel knows of the way, from what routers said.
func (r *run) told(s *state) int {
	if r.wire == nil {
		return 0
	}
	return r.wire.told(s.peer.Via)
}

// proceed sends the next probe, or ends the search.
func (r *run) proceed(s *state, now time.Time) {
	for s.search.size != 0 {
		s.search.tried++
		err := r.send(s)
		if errors.Is(err, unix.EMSGSIZE) { // the link has changed
			s.search.lost(0, true)
			continue
		}
		if err != nil {
			r.p.cfg.Logger.Debug("probe not sent", "to", s.peer.Via, "err", err)
		}
		r.at(s, now.Add(s.search.wait()))
		return
	}
	r.conclude(s, now)
}

func (r *run) at(s *state, due time.Time) {
	s.due = due
	heap.Fix(&r.queue, s.place)
}

// conclude ends a search. A way that takes less than the link does is looked at again sooner: a probe may have been lost
// for another reason.
func (r *run) conclude(s *state, now time.Time) {
	first := doubt
	if s.search.passed == 0 {
		first = silence
	}
	if s.search.passed >= r.limit() {
		s.pause = confirm
	} else {
		s.pause = min(max(2*s.pause, first), confirm)
	}
	r.at(s, now.Add(s.pause+rand.N(s.pause/10)))
	if s.search.passed > 0 {
		r.p.learn(s.peer.Node, s.peer.Via, s.search.passed, r.limit())
	}
}

func (r *run) send(s *state) error {
	if r.wire != nil && r.wire.deaf() {
		r.close()
	}
	if r.wire == nil {
		w, err := r.open()
		if err != nil {
			return err
		}
		r.wire = w
	}
	if s.search.tried == 1 { // a late answer is one, too
		r.last++
		s.sequence = r.last
	}
	return r.wire.send(s.peer.Via, uint16(r.tunnel.Port), probe(r.tunnel, &s.peer, s.search.size, r.id, s.sequence))
}

// answered takes a reply to a probe of the size being tried.
func (r *run) answered(a reply) {
	s, ok := r.states[a.from]
	if !ok || s.sequence != a.sequence || s.search.tried == 0 {
		return
	}
	s.search.answered()
	r.proceed(s, time.Now())
}

// queue orders states by when something is due.
type queue []*state

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	s := x.(*state)
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
