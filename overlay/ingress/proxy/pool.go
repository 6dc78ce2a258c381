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
	// sampleSize is the number of endpoints from which pick chooses the least busy one. It bounds the cost of a request in a
	// large pool.
	sampleSize = 16
	// avoidTime is how long an endpoint that refused a connection is used only if there is no other.
	avoidTime = 5 * time.Second
)

// endpoint is one address of a backend. It keeps its counts when other endpoints of the pool change.
type endpoint struct {
	addr         string
	pending      atomic.Int64 // requests under way
	avoidedUntil atomic.Int64 // the end of avoidTime, in nanoseconds since 1970
}

// pool has the endpoints over which one backend's requests are spread.
type pool struct {
	endpoints atomic.Pointer[[]*endpoint]
	turn      atomic.Uint32
}

// set replaces the endpoints. An endpoint that keepOpen keeps its counts.
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

// pick returns the least busy of the next sampleSize endpoints that were not tried; nil if there is none. It prefers
// endpoints that are not avoided.
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
		if e.avoidedUntil.Load() > now.UnixNano() {
			busy += math.MaxInt32 // more than any endpoint that is not avoided
		}
		if busy < least {
			best, least = e, busy
		}
		if seen++; seen >= sampleSize && least < math.MaxInt32 {
			break
		}
	}
	return best
}

func (e *endpoint) avoid(now time.Time) { e.avoidedUntil.Store(now.Add(avoidTime).UnixNano()) }

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

// dropUnused removes the pools of backends that are not in used.
func (p *pools) dropUnused(used map[plan.Backend]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b := range p.by {
		if !used[b] {
			delete(p.by, b)
		}
	}
}
