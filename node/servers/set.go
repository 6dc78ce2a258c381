package servers

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Server is one API server.
type Server struct {
	ID   string // identity; stays the same when the address changes
	Addr string // host:port
	Live bool   // as far as the source of the list knows
}

// Config says which servers there are at first and how patiently they are asked. The zero value of every duration is a
// sensible default.
type Config struct {
	// Node is the name by which machines are spread over the servers.
	Node string
	// Prefer is the ID of a server that is taken first while it lives, such as the one on this machine; "" is none.
	Prefer  string
	Servers []Server
	// TLS has the last word on the configuration of a transport: on how servers are verified. Nil changes nothing.
	TLS func(*tls.Config) *tls.Config
	// Dial connects to an address; nil is net.Dialer's.
	Dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	Logger *slog.Logger

	// Stagger is how long one server is waited for before the next is asked beside it. Default 300 ms.
	Stagger time.Duration
	// Attempt bounds connecting to one server, handshake included. Default 3 s.
	Attempt time.Duration
	// Idle and Answer: a connection on which nothing came for Idle is asked for a sign of life, and given up when none comes
	// within Answer. Defaults 400 and 600 ms.
	Idle, Answer time.Duration
	// Return is how long at least a connection stays with a server that is not the first of the order after that one came
	// back; the time is random, up to five times this. Default 1 min.
	Return time.Duration
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("servers: Config.Node must be set"))
	}
	for _, d := range []time.Duration{c.Stagger, c.Attempt, c.Idle, c.Answer, c.Return} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("servers: duration %v is negative", d))
		}
	}
	return errors.Join(append(errs, check(c.Servers))...)
}

func check(list []Server) error {
	var errs []error
	for _, s := range list {
		if _, _, err := net.SplitHostPort(s.Addr); err != nil || s.ID == "" {
			errs = append(errs, fmt.Errorf("servers: %q at %q: an identity and host:port are needed", s.ID, s.Addr))
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) { *d = cmp.Or(*d, v) }
	def(&c.Stagger, 300*time.Millisecond)
	def(&c.Attempt, 3*time.Second)
	def(&c.Idle, 400*time.Millisecond)
	def(&c.Answer, 600*time.Millisecond)
	def(&c.Return, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}).DialContext
	}
	return c
}

// How long a server that could not be reached is asked last, unless the source says that it is back.
const (
	firstRest = time.Second
	lastRest  = 30 * time.Second
)

// Set knows the servers. Safe for concurrent use.
type Set struct {
	cfg Config

	mu         sync.Mutex
	order      []*server // by preference
	conns      map[string]map[*conn]struct{}
	transports []*transport
	changed    chan struct{} // closed when the list changed
}

type server struct {
	Server
	rest  time.Duration // how long it was to rest the last time
	until time.Time     // asked last until then
}

// New returns a Set; it starts nothing, and works without Run but for moving back.
func New(cfg Config) (*Set, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Set{cfg: cfg.withDefaults(), conns: map[string]map[*conn]struct{}{}, changed: make(chan struct{})}
	s.replace(s.cfg.Servers)
	return s, nil
}

// Update replaces the list. Connections to a server that was live and is not any more, that has another address or is gone
// from the list are closed. An empty or faulty list is refused: a machine that knows no server finds none.
func (s *Set) Update(list []Server) error {
	if err := check(list); err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("servers: an empty list")
	}
	for _, addr := range s.replace(list) {
		s.Drop(addr)
	}
	return nil
}

// replace returns the addresses that are no longer to be used.
func (s *Set) replace(list []Server) (left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make([]*server, 0, len(list))
	for _, one := range list {
		n := &server{Server: one}
		if i := slices.IndexFunc(s.order, func(o *server) bool { return o.ID == one.ID }); i >= 0 {
			old := s.order[i]
			if old.Live == one.Live && old.Addr == one.Addr {
				n.rest, n.until = old.rest, old.until
			}
			if old.Addr == one.Addr && (one.Live || !old.Live) {
				s.order = slices.Delete(s.order, i, i+1) // stays in use
			}
		}
		next = append(next, n)
	}
	for _, old := range s.order {
		left = append(left, old.Addr)
	}
	slices.SortStableFunc(next, func(a, b *server) int {
		if d := preferred(b, s.cfg.Prefer) - preferred(a, s.cfg.Prefer); d != 0 {
			return d
		}
		return cmp.Compare(weight(s.cfg.Node, b.ID), weight(s.cfg.Node, a.ID))
	})
	s.order = next
	close(s.changed)
	s.changed = make(chan struct{})
	return left
}

func preferred(s *server, id string) int {
	if id != "" && s.ID == id {
		return 1
	}
	return 0
}

// weight is rendezvous hashing (Thaler and Ravishankar, 1998): each node orders the servers by weight. Nodes are spread evenly
// over the servers, and a server that is added or removed changes the first server of as few nodes as possible.
func weight(node, id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	h.Write([]byte{0})
	h.Write([]byte(id))
	x := h.Sum64() // FNV alone is too even for names that differ at their end: mix (splitmix64)
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Servers returns the list, the one to take first in front. For keeping it over a restart.
func (s *Set) Servers() []Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Server, 0, len(s.order))
	for _, o := range s.order {
		out = append(out, o.Server)
	}
	return out
}

// candidates returns the servers in the order in which they are tried: live ones, then those that could not be reached a moment
// ago, then those reported as dead. Dead ones are tried, too, because the server that reported them may itself be cut off.
func (s *Set) candidates(now time.Time) []Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	class := func(o *server) int {
		switch {
		case !o.Live:
			return 2
		case o.until.After(now):
			return 1
		}
		return 0
	}
	sorted := slices.Clone(s.order)
	slices.SortStableFunc(sorted, func(a, b *server) int { return class(a) - class(b) })
	out := make([]Server, 0, len(sorted))
	for _, o := range sorted {
		out = append(out, o.Server)
	}
	return out
}

// reached and failed record how asking a server went.
func (s *Set) reached(id string) {
	s.note(id, func(o *server) { o.rest, o.until = 0, time.Time{} })
}

func (s *Set) failed(id string) {
	s.note(id, func(o *server) {
		o.rest = min(max(2*o.rest, firstRest), lastRest)
		o.until = time.Now().Add(o.rest)
	})
}

func (s *Set) note(id string, fn func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.order {
		if o.ID == id {
			fn(o)
		}
	}
}

// Drop closes every connection to an address, at once: the server there is gone.
func (s *Set) Drop(addr string) {
	s.mu.Lock()
	var gone []*conn
	for c := range s.conns[addr] {
		gone = append(gone, c)
	}
	transports := slices.Clone(s.transports)
	s.mu.Unlock()
	for _, t := range transports { // first: nothing more may begin on what is about to close
		t.renew(func(g *generation) bool { return g.at() == addr })
	}
	for _, c := range gone {
		c.Close()
	}
	if len(gone) > 0 {
		s.cfg.Logger.Info("an API server is left: its connections are closed, and clients go to another", "address", addr, "connections", len(gone))
	}
}

// conn is a connection that Drop can find.
type conn struct {
	net.Conn
	set  *Set
	addr string
}

func (s *Set) track(c net.Conn, addr string) *conn {
	t := &conn{Conn: c, set: s, addr: addr}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[addr] == nil {
		s.conns[addr] = map[*conn]struct{}{}
	}
	s.conns[addr][t] = struct{}{}
	return t
}

// Close implements net.Conn.
func (c *conn) Close() error {
	s := c.set
	s.mu.Lock()
	if delete(s.conns[c.addr], c); len(s.conns[c.addr]) == 0 {
		delete(s.conns, c.addr)
	}
	s.mu.Unlock()
	return c.Conn.Close()
}

// Renew lets every transport show its certificate anew: new requests go over new connections, and those under way end
// where they are. A connection counts no longer than the certificate it was made with.
func (s *Set) Renew() {
	s.mu.Lock()
	all := slices.Clone(s.transports)
	s.mu.Unlock()
	for _, t := range all {
		t.renew(func(*generation) bool { return true })
	}
}

// Run moves connections back to where they belong, a random while after that server came back, until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		timer := time.NewTimer(s.cfg.Return + rand.N(4*s.cfg.Return))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
			continue
		case <-timer.C:
		}
		if first := s.candidates(time.Now()); len(first) > 0 && first[0].Live {
			s.mu.Lock()
			transports := slices.Clone(s.transports)
			s.mu.Unlock()
			for _, t := range transports {
				t.moveTo(first[0].Addr)
			}
		}
	}
}
