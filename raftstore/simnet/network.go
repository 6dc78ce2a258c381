package simnet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore"
)

// Link is the delays and losses of messages in one direction.
type Link struct {
	// MinDelay and MaxDelay bound the time that a message takes.
	MinDelay, MaxDelay time.Duration
	// Loss is the share of messages that never arrive, 0 to 1.
	Loss float64
	// Twice is the share of requests between stores that arrive twice.
	Twice float64
	// Late is the share of messages that take LateDelay more.
	Late      float64
	LateDelay time.Duration
	// Cut loses every message that is sent from now on.
	Cut bool
}

// Config is the configuration of a Network.
type Config struct {
	// Seed decides delays and losses.
	Seed uint64
	// Default is every link for which SetLink was not called.
	Default Link
	// Timeout is how long a sender waits for an answer before its connection counts as dead. Default 500 ms.
	Timeout time.Duration
	// Observe, if set, is called with every Raft request when it is sent. It must not block.
	Observe func(from, to string, command any)
	// Answered, if set, is called with every Raft request that `to` has answered and with the answer, before the answer is sent. It must not
	// block.
	Answered func(to string, command, answer any)
}

// Network joins peers. All methods may be called from any goroutine.
type Network struct {
	cfg  Config
	work sync.WaitGroup // messages under way

	mu     sync.Mutex
	nodes  map[string]*Node
	links  map[[2]string]*link
	paused map[string]chan struct{} // closed when the peer goes on
}

type link struct {
	Link
	rng *rand.Rand
}

// New returns a network without peers.
func New(cfg Config) *Network {
	if cfg.Timeout == 0 {
		cfg.Timeout = 500 * time.Millisecond
	}
	return &Network{cfg: cfg, nodes: make(map[string]*Node), links: make(map[[2]string]*link), paused: make(map[string]chan struct{})}
}

// Join starts the process id on the network. It kills an earlier process with that ID.
func (n *Network) Join(id string) *Node {
	p := &Node{net: n, id: id, dead: make(chan struct{}), consumer: make(chan raft.RPC)}
	n.mu.Lock()
	old := n.nodes[id]
	n.nodes[id] = p
	n.mu.Unlock()
	if old != nil {
		old.Kill()
	}
	return p
}

// SetLink replaces the link from one peer to another.
func (n *Network) SetLink(from, to string, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).Link = l
}

// ChangeLink changes the link from one peer to another.
func (n *Network) ChangeLink(from, to string, change func(*Link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.link(from, to).Link)
}

// Heal makes every link the default again and resumes every paused peer.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.Link = n.cfg.Default
	}
	for id, p := range n.paused {
		delete(n.paused, id)
		close(p)
	}
}

// Pause stops a peer as SIGSTOP does, as far as the network can: messages from and to it wait, and arrive when it resumes.
func (n *Network) Pause(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paused[id] == nil {
		n.paused[id] = make(chan struct{})
	}
}

// Resume ends a Pause.
func (n *Network) Resume(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.paused[id]; p != nil {
		delete(n.paused, id)
		close(p)
	}
}

// Close kills every peer and waits until no message is under way.
func (n *Network) Close() {
	n.mu.Lock()
	var all []*Node
	for _, p := range n.nodes {
		all = append(all, p)
	}
	n.mu.Unlock()
	for _, p := range all {
		p.Kill()
	}
	n.Heal()
	n.work.Wait()
}

// link returns the link of one direction; n.mu is held.
func (n *Network) link(from, to string) *link {
	l := n.links[[2]string{from, to}]
	if l == nil {
		h := fnv.New64a()
		h.Write([]byte(from + ">" + to))
		l = &link{Link: n.cfg.Default, rng: rand.New(rand.NewPCG(n.cfg.Seed, h.Sum64()))}
		n.links[[2]string{from, to}] = l
	}
	return l
}

// fate is the delay or loss of one message.
type fate struct {
	delay        time.Duration
	again        time.Duration // delay of the second copy
	lost, twice  bool
	cancelArrive bool // the receiver learns when the sender gives up
}

func (n *Network) draw(from, to string) fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(from, to)
	f := fate{delay: l.wait(), again: l.wait()}
	f.lost = l.Cut || l.rng.Float64() < l.Loss
	f.twice = l.rng.Float64() < l.Twice
	f.cancelArrive = l.rng.IntN(2) == 0
	return f
}

func (l *link) wait() time.Duration {
	d := l.MinDelay
	if span := l.MaxDelay - l.MinDelay; span > 0 {
		d += time.Duration(l.rng.Int64N(int64(span) + 1))
	}
	if l.rng.Float64() < l.Late {
		d += l.LateDelay
	}
	return d
}

func (n *Network) node(id string) *Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[id]
}

// The reasons why a message did not arrive.
var (
	errLost    = errors.New("simnet: lost")
	errRefused = errors.New("simnet: connection refused")
	errReset   = errors.New("simnet: connection reset")
	errTimeout = errors.New("simnet: no answer in time")
	errDead    = errors.New("simnet: this peer is dead")
)

// Node is one process on the network, from Join to Kill.
type Node struct {
	net      *Network
	id       string
	once     sync.Once
	dead     chan struct{}
	consumer chan raft.RPC

	mu        sync.Mutex
	heartbeat func(raft.RPC)
	handler   raftstore.Handler
}

// ID is the peer's address.
func (p *Node) ID() string { return p.id }

// Kill ends the process as kill -9 does: no request or answer leaves it from now on, and requests that wait for it are refused.
func (p *Node) Kill() {
	p.once.Do(func() {
		close(p.dead)
		p.net.mu.Lock()
		defer p.net.mu.Unlock()
		if p.net.nodes[p.id] == p {
			delete(p.net.nodes, p.id)
		}
	})
}

// Dead returns a channel that closes when the process is killed.
func (p *Node) Dead() <-chan struct{} { return p.dead }

// Awake returns nil when the process is not paused. Clients of a paused process wait here, as its peers do.
func (p *Node) Awake(ctx context.Context) error {
	for {
		p.net.mu.Lock()
		stopped := p.net.paused[p.id]
		p.net.mu.Unlock()
		if stopped == nil {
			return nil
		}
		select {
		case <-stopped:
		case <-p.dead:
			return errDead
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *Node) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// travel returns when a message from p has arrived, with the process whose ID is `to` at that time.
func (p *Node) travel(to string, f fate) (*Node, error) {
	if err := p.Awake(context.Background()); err != nil {
		return nil, err
	}
	if p.isDead() {
		return nil, errDead
	}
	if f.lost {
		return nil, errLost
	}
	time.Sleep(f.delay)
	q := p.net.node(to)
	if q == nil {
		return nil, errRefused
	}
	if q.Awake(context.Background()) != nil || q.isDead() {
		return nil, errReset
	}
	return q, nil
}

// answer is the answer to a request.
type answer struct {
	v   any
	err error
}

// call sends one request and returns the answer, or why there is none. serve runs at the destination, also when the sender has given up.
func (p *Node) call(ctx context.Context, to string, f fate, patience time.Duration, serve func(*Node) (any, error)) (any, error) {
	if p.isDead() {
		return nil, errDead
	}
	back := make(chan answer, 1)
	p.net.work.Go(func() {
		q, err := p.travel(to, f)
		if err != nil {
			if !errors.Is(err, errLost) {
				back <- answer{err: err}
			}
			return
		}
		v, err := serve(q)
		if q.isDead() {
			back <- answer{err: errReset}
			return
		}
		if _, lost := q.travel(p.id, p.net.draw(q.id, p.id)); lost == nil {
			back <- answer{v, err}
		}
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-back:
		return a.v, a.err
	case <-p.dead:
		return nil, errDead
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errTimeout, ctx.Err())
	case <-timer.C:
		return nil, errTimeout
	}
}
