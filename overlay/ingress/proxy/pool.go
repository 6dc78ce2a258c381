package proxy

import (
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/overlay/ingress/plan"
)

const (
	// looked is among how many endpoints the least busy one is chosen; a request costs the same however many there are.
	looked = 16
	// rest is how long an endpoint that refused a connection is asked only when there is no other.
	rest = 5 * time.Second
)

// endpoint is one address of a backend, alive across changes of the others.
type endpoint struct {
	addr    string
	pending atomic.Int64 // requests under way
	resting atomic.Int64 // until when, in nanoseconds since 1970
}

// pool has the endpoints over which one backend's requests are spread.
type pool struct {
	endpoints atomic.Pointer[[]*endpoint]
	turn      atomic.Uint32
}

// set replaces the endpoints, keeping what is known of those that stay.
func (p *pool) set(addrs []netip.AddrPort) {
	have := map[string]*endpoint{}
	if old := p.endpoints.Load(); old != nil {
		for _, e := range *old {
			have[e.addr] = e
		}
	}
	list := make([]*endpoint, 0, len(addrs))
	for _, a := range addrs {
		e := have[a.String()]
		if e == nil {
			e = &endpoint{addr: a.String()}
		}
		list = append(list, e)
	}
	p.endpoints.Store(&list)
}

// pick returns the least busy of the next endpoints that were not tried, nil when there is none. Those that rest come last.
func (p *pool) pick(tried []*endpoint, now time.Time) *endpoint {
	load := p.endpoints.Load()
	if load == nil || len(*load) == 0 {
		return nil
	}
	list := *load
	start := int(p.turn.Add(1) % uint32(len(list)))
	var best *endpoint
	least, seen := int64(math.MaxInt64), 0
	for i := range list {
		e := list[(start+i)%len(list)]
		if slices.Contains(tried, e) {
			continue
		}
		busy := e.pending.Load()
		if e.resting.Load() > now.UnixNano() {
			busy += math.MaxInt32 // more than any endpoint that does not rest
		}
		if busy < least {
			best, least = e, busy
		}
		if seen++; seen >= looked && least < math.MaxInt32 {
			break
		}
	}
	return best
}

func (e *endpoint) rest(now time.Time) { e.resting.Store(now.Add(rest).UnixNano()) }

// pools are the pools of all backends.
type pools struct {
	mu sync.RWMutex
	by map[plan.Backend]*pool
}

func (p *pools) get(b plan.Backend) *pool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.by[b]
}

func (p *pools) set(b plan.Backend, addrs []netip.AddrPort) {
	p.mu.Lock()
	one := p.by[b]
	if one == nil {
		one = &pool{}
		if p.by == nil {
			p.by = map[plan.Backend]*pool{}
		}
		p.by[b] = one
	}
	p.mu.Unlock()
	one.set(addrs)
}

// keep forgets the backends that are not in use.
func (p *pools) keep(used map[plan.Backend]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b := range p.by {
		if !used[b] {
			delete(p.by, b)
		}
	}
}
