package speaker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/host"
)

// retry is the pause before a failed step is tried again.
const retry = time.Second

// Announcer announces this node's part of the load balancers' addresses.
type Announcer struct {
	cfg Config
	ns  host.Namespace

	mu      sync.Mutex
	pending changes
	local   map[types.NamespacedName]bool // Services whose endpoints matter
	wake    chan struct{}

	state state // Run's goroutine alone uses it
}

// changes are the events since the last call of takeChanges.
type changes struct {
	services    map[types.NamespacedName]struct{}
	nodes, lans bool
	claims      map[netip.Addr]string // the MAC address of the host that claims the address
}

// New prepares an Announcer; nothing is opened before Run.
func New(cfg Config) (*Announcer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ns, err := host.OpenNamespace(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	// Asking for an informer registers it, so that the factory starts it.
	cfg.Informers.Core().V1().Services().Informer()
	cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	cfg.Informers.Core().V1().Nodes().Informer()
	a := &Announcer{cfg: cfg, ns: ns, local: map[types.NamespacedName]bool{}, wake: make(chan struct{}, 1)}
	a.pending = changes{services: map[types.NamespacedName]struct{}{}, claims: map[netip.Addr]string{}}
	a.state = newState(a)
	return a, nil
}

// Run announces until ctx ends. It sends no farewell: neighbours go on sending to this node until another node claims its
// addresses or until their ARP or NDP entry expires.
func (a *Announcer) Run(ctx context.Context) error {
	defer a.ns.Close()
	ctx, cancel := context.WithCancel(ctx)
	remove, synced, err := a.watch()
	defer remove()
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	a.cfg.Informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	defer a.state.closeAll()
	followLANs := sync.OnceFunc(func() { others.Go(fault.Contained("overlay/speaker", func() { a.followLANs(ctx) })) })
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-again.C:
		}
		var next time.Time
		if fault.Do("overlay/speaker", func() {
			fault.Point("overlay/speaker")
			next = a.state.reconcile(ctx, a.takeChanges(), time.Now())
		}) != nil {
			a.note(func(n *changes) { n.nodes, n.lans = true, true })
			next = time.Now().Add(retry)
		}
		if len(a.state.balancers) > 0 {
			followLANs()
		}
		again.Stop()
		if !next.IsZero() {
			again.Reset(time.Until(next))
		}
	}
}

func (a *Announcer) followLANs(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for ctx.Err() == nil {
		err := fault.Contain("overlay/speaker", func() error {
			return watchLANs(ctx, a.ns, func() { a.note(func(n *changes) { n.lans = true }) })
		})
		if ctx.Err() == nil {
			a.cfg.Logger.Warn("cannot watch links; their changes are not seen until it works again", "err", err)
		}
		again.Reset(retry)
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// note adds to the pending changes and wakes Run. It holds the lock only for f.
func (a *Announcer) note(f func(*changes)) {
	func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		f(&a.pending)
	}()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *Announcer) takeChanges() changes {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.pending
	n.services, n.claims = maps.Clone(n.services), maps.Clone(n.claims)
	clear(a.pending.services)
	clear(a.pending.claims)
	a.pending.nodes, a.pending.lans = false, false
	return n
}

// claimed notes that another host claims an address of a speaker. The map cannot outgrow the number of addresses that
// speakers answer for.
func (a *Announcer) claimed(addr netip.Addr, by net.HardwareAddr) {
	a.note(func(n *changes) { n.claims[addr] = by.String() })
}

// watch adds handlers to the informers. remove removes them, and may be called after an error too.
func (a *Announcer) watch() (remove func(), synced []cache.InformerSynced, err error) {
	core := a.cfg.Informers.Core().V1()
	rows := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.Services().Informer(), onChange(a.serviceChanged)},
		{a.cfg.Informers.Discovery().V1().EndpointSlices().Informer(), onChange(a.sliceChanged)},
		{core.Nodes().Informer(), onChange(a.nodeChanged)},
	}
	var undo []func()
	remove = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, row := range rows {
		registration, err := row.informer.AddEventHandler(eventhandler.Contain("overlay/speaker", row.handler))
		if err != nil {
			return remove, nil, err
		}
		undo = append(undo, func() { _ = row.informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSynced)
	}
	return remove, synced, nil
}

// onChange calls f with the object before and after the change; nil stands for an object that did not exist or is deleted.
func onChange[T any](f func(old, now *T)) cache.ResourceEventHandler {
	as := func(o any) *T {
		if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = unknown.Obj
		}
		t, _ := o.(*T)
		return t
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(nil, as(o)) },
		UpdateFunc: func(old, now any) { f(as(old), as(now)) },
		DeleteFunc: func(o any) { f(as(o), nil) },
	}
}

func (a *Announcer) serviceChanged(old, now *v1.Service) {
	for _, svc := range []*v1.Service{now, old} {
		if _, ok := balancerOf(svc); ok {
			a.note(func(n *changes) {
				n.services[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = struct{}{}
			})
			return
		}
	}
}

func (a *Announcer) sliceChanged(old, now *discovery.EndpointSlice) {
	for _, s := range []*discovery.EndpointSlice{old, now} {
		if s == nil {
			continue
		}
		key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discovery.LabelServiceName]}
		a.mu.Lock()
		matters := a.local[key]
		a.mu.Unlock()
		if matters {
			a.note(func(n *changes) { n.services[key] = struct{}{} })
		}
	}
}

func (a *Announcer) nodeChanged(old, now *v1.Node) {
	if old == nil || now == nil || nodeViewOf(old) != nodeViewOf(now) {
		a.note(func(n *changes) { n.nodes = true })
	}
}
