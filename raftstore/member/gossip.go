package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/balsahq/balsa/fault"
)

var (
	// ErrNameTaken is returned by Run when another live member has this member's name or ServerID.
	ErrNameTaken = errors.New("member: another live member has this name")
	// ErrNotRunning is returned by methods that need Run to be running.
	ErrNotRunning = errors.New("member: gossip is not running")
)

// Gossip is this member of the gossip. All methods may be called at any time from any goroutine.
type Gossip struct {
	cfg   Config
	log   logger
	table *table

	meta  atomic.Pointer[[]byte] // self, encoded
	keys  *memberlist.Keyring
	ready chan struct{} // closed when list and addr are set

	// life is held for reading while list is used, and for writing when it ends.
	life sync.RWMutex
	list *memberlist.Memberlist
	left bool
	addr atomic.Value // string

	// write orders changes of self and of the keys.
	write sync.Mutex
	self  Meta

	seat seat
}

// New returns a member. It starts nothing.
func New(cfg Config) (*Gossip, error) {
	cfg.Meta.Name = cfg.Name
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	switch {
	case cfg.BindPort == 0:
		cfg.BindPort = DefaultPort
	case cfg.BindPort < 0:
		cfg.BindPort = 0
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	keys := make([][]byte, 0, len(cfg.Keys))
	for _, k := range cfg.Keys {
		keys = append(keys, slices.Clone(k))
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("member: gossip keys: %w", err)
	}
	g := &Gossip{
		cfg: cfg, log: logger{cfg.Logger, newLimiter()}, table: newTable(), keys: ring,
		ready: make(chan struct{}), self: cfg.Meta, seat: seat{changed: make(chan struct{}, 1)},
	}
	return g, g.setMeta(func(m *Meta) { m.Keys = fingerprints(keys) })
}

func fingerprints(keys [][]byte) []KeyID {
	var out []KeyID
	for _, k := range keys {
		out = append(out, Fingerprint(k))
	}
	return out
}

// Run takes part in gossip until ctx ends. It then falls silent, which other members see as a failure unless Leave came before. It returns
// an error when it cannot listen, and ErrNameTaken. Run may be called once.
func (g *Gossip) Run(ctx context.Context) error {
	transport := g.cfg.Transport
	if transport == nil {
		w, err := newWire(g.log, g.cfg.Meta.ClusterID, g.cfg.BindAddr, g.cfg.BindPort)
		if err != nil {
			return err
		}
		transport = w
	}
	list, err := memberlist.Create(g.memberlistConfig(transport))
	if err != nil {
		return errors.Join(fmt.Errorf("member: start gossip: %w", err), transport.Shutdown())
	}
	g.life.Lock()
	g.list = list
	g.addr.Store(list.LocalNode().Address())
	g.life.Unlock()
	close(g.ready)

	joining, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- fault.Keep(joining, unit, g.join) }()
	select {
	case <-ctx.Done():
	case err = <-result:
		result <- nil
	}
	stop()
	g.life.Lock()
	g.list = nil
	g.life.Unlock()
	down := list.Shutdown() // closes the sockets that the joiner may wait for
	<-result
	return errors.Join(err, down)
}

func (g *Gossip) memberlistConfig(t memberlist.Transport) *memberlist.Config {
	c, timing := memberlist.DefaultLANConfig(), g.cfg.Timing
	c.Name, c.Label, c.Transport = g.cfg.Name, g.cfg.Meta.ClusterID, t
	c.BindPort, c.AdvertisePort, c.AdvertiseAddr = g.cfg.BindPort, g.cfg.BindPort, g.cfg.AdvertiseAddr
	if w, ok := t.(*wire); ok {
		c.BindPort, c.AdvertisePort = w.port(), w.port()
	}
	c.Keyring, c.GossipVerifyIncoming, c.GossipVerifyOutgoing = g.keys, true, true
	c.EnableCompression = false // tables are small, and a compressed message could unpack to any size
	c.ProbeInterval, c.ProbeTimeout = timing.ProbeInterval, timing.ProbeTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = timing.SuspicionMult, timing.SuspicionMax
	c.IndirectChecks, c.AwarenessMaxMultiplier = timing.IndirectChecks, timing.AwarenessMax
	c.GossipInterval, c.PushPullInterval, c.TCPTimeout = timing.GossipInterval, timing.PushPull, timing.Stream
	c.RetransmitMult = 8      // news is rare, and a member should hardly ever miss it
	c.DeadNodeReclaimTime = 1 // a dead member may come back at another address at once
	c.QueueCheckInterval = time.Hour
	d := delegate{g}
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = d, d, d, d, d
	c.Logger = g.log.forMemberlist()
	return c
}

// Ready returns a channel that closes when Run listens.
func (g *Gossip) Ready() <-chan struct{} { return g.ready }

// Addr returns the ip:port that this member announces, "" before Ready.
func (g *Gossip) Addr() string {
	addr, _ := g.addr.Load().(string)
	return addr
}

// Members returns all known members with this one, ordered by name.
func (g *Gossip) Members() []Member { return g.table.list() }

// Changed returns a channel that is closed at the next change of Members.
func (g *Gossip) Changed() <-chan struct{} { return g.table.watch() }

// Resolve returns the host:port of a server's one TCP port: the present one if it is alive, else the last one in gossip, else the one
// given to Remember.
func (g *Gossip) Resolve(serverID string) (addr string, ok bool) { return g.table.resolve(serverID) }

// Remember keeps addresses of servers, ServerID to host:port, for Resolve to fall back on: from the store, and from the answer to
// joining.
func (g *Gossip) Remember(addrs map[string]string) { g.table.remember(addrs) }

// Forget removes a member that is not alive, by ServerID or node name. It returns false when there is none.
func (g *Gossip) Forget(id string) bool { return g.table.forget(id) }

// Alive reports whether the node of this name is alive, and whether it is known at all.
func (g *Gossip) Alive(nodeName string) (alive, known bool) {
	for _, m := range g.table.list() {
		if m.Name == nodeName {
			known = true
			alive = alive || m.State == StateAlive
		}
	}
	return alive, known
}

// Health returns 0 while this member answers and probes in time, and more the later it is: Lifeguard's local health.
func (g *Gossip) Health() int {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.list == nil {
		return 0
	}
	return g.list.GetHealthScore()
}

// UpdateMeta changes this member's Meta and announces it. ErrMeta for a change of identity, name, role or cluster.
func (g *Gossip) UpdateMeta(change func(*Meta)) error {
	return g.setMeta(func(m *Meta) {
		keys := m.Keys
		change(m)
		m.Keys = keys
	})
}

// announceFor bounds the wait until a new Meta has been sent to some members.
const announceFor = 2 * time.Second

func (g *Gossip) setMeta(change func(*Meta)) error {
	g.write.Lock()
	defer g.write.Unlock()
	return g.setMetaLocked(change)
}

func (g *Gossip) setMetaLocked(change func(*Meta)) error {
	next := g.self
	next.Keys = slices.Clone(g.self.Keys)
	change(&next)
	if next.ServerID != g.self.ServerID || next.Name != g.self.Name || next.Role != g.self.Role || next.ClusterID != g.self.ClusterID {
		return fmt.Errorf("%w: identity, name, role and cluster stay while a member runs", ErrMeta)
	}
	raw, err := next.Encode()
	if err != nil {
		return err
	}
	g.self = next
	g.meta.Store(&raw)
	g.life.RLock()
	defer g.life.RUnlock()
	if g.list == nil || g.left {
		return nil
	}
	if err := g.list.UpdateNode(announceFor); err != nil {
		// Members that miss it get it in the next exchange of tables.
		g.log.once(slog.LevelDebug, "update", "gossip: the new data of this member is not announced yet, other members get it with the next exchange of tables", "err", err)
	}
	return nil
}

func (g *Gossip) changeKeys(change func([][]byte) ([][]byte, error)) error {
	g.write.Lock()
	defer g.write.Unlock()
	now := slices.Clone(g.keys.GetKeys())
	want, err := change(slices.Clone(now))
	if err != nil {
		return err
	}
	if len(want) == 0 || len(want) > maxKeys {
		return fmt.Errorf("%w: %d keys, want 1 to %d", ErrKey, len(want), maxKeys)
	}
	for _, k := range want {
		err = errors.Join(err, g.keys.AddKey(slices.Clone(k)))
	}
	err = errors.Join(err, g.keys.UseKey(want[0]))
	for _, k := range now {
		if !containsKey(want, k) {
			err = errors.Join(err, g.keys.RemoveKey(k))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	return g.setMetaLocked(func(m *Meta) { m.Keys = fingerprints(want) })
}

// Leave announces that this member stops on purpose and will come back. It must be called before the context of Run ends; timeout bounds
// the announcement.
func (g *Gossip) Leave(timeout time.Duration) error { return g.leave(timeout, Stopping) }

// Depart is Leave for a server that does not come back: it is removed from the cluster.
func (g *Gossip) Depart(timeout time.Duration) error { return g.leave(timeout, Departing) }

func (g *Gossip) leave(timeout time.Duration, why Leaving) error {
	start := time.Now()
	g.write.Lock()
	defer g.write.Unlock()
	g.life.RLock()
	list, left := g.list, g.left
	g.life.RUnlock()
	if list == nil {
		return ErrNotRunning
	}
	if left {
		return nil
	}
	// The reason is announced first, so that members know it when this one leaves.
	if err := g.setMetaLocked(func(m *Meta) { m.Leaving = why }); err != nil {
		return err
	}
	g.life.Lock()
	g.left = true
	g.life.Unlock()
	g.life.RLock() // Run must not end during list.Leave
	defer g.life.RUnlock()
	if g.list == nil {
		return ErrNotRunning
	}
	if err := list.Leave(max(timeout-time.Since(start), timeout/2)); err != nil {
		return fmt.Errorf("member: leave: %w", err)
	}
	return nil
}
