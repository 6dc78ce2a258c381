package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/pmtu"
	"github.com/balsahq/balsa/overlay/relay"
	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/overlay/services"
)

// touched is what may no longer be as it should.
type touched uint8

const (
	nodeTouched  touched = 1 << iota
	peersTouched         // other nodes
	linksTouched
	rulesTouched    // somebody else changed our nftables
	servicesTouched // host ports, or who may send to the tunnel
	allTouched      // every service
	mtuTouched      // what pods may send at once changed

	everything = nodeTouched | peersTouched | linksTouched | rulesTouched | servicesTouched | allTouched
)

// todo is what to look at.
type todo struct {
	what     touched
	services map[string]struct{} // by "namespace/name"
	by       string              // who changed our nftables
}

func (t *todo) add(other todo) {
	t.what |= other.what
	if other.by != "" {
		t.by = other.by
	}
	if t.what&allTouched != 0 {
		t.services = nil // they are among all
		return
	}
	if t.services == nil {
		t.services = other.services
		return
	}
	for name := range other.services {
		t.services[name] = struct{}{}
	}
}

// engine is the one writer to the kernel.
type engine struct {
	cfg   Config
	ns    host.Namespace
	ready chan struct{}
	// naming orders the handlers that fill the DNS zone.
	naming sync.Mutex

	services     corelisters.ServiceLister
	serviceCIDRs networkinglisters.ServiceCIDRLister
	slices       cache.Indexer // of EndpointSlices, with the index byService

	mu    sync.Mutex
	dirty todo
	ports map[uint32]struct{} // our netlink ports
	wake  chan struct{}

	flows *flows
	// renetwork tells the DNS zone which networks are Services'.
	renetwork func(services []netip.Prefix)

	// Owned by run.
	host     *host.Host
	pods     []netip.Prefix // this node's pod networks
	networks []netip.Prefix // of Services
	reserved *services.Reserved
	zone     string       // the node's
	proxies  []*proxy     // none before the node is known
	ways     *routes.Plan // to other nodes; empty before the first look
	failed   string       // the last error told, so that it is told once
	patience patience     // with those who change our nftables

	// prober and relay are told of the tunnel.
	prober *pmtu.Prober
	relay  *relay.Relay

	// tunnel is the index of the tunnel's link, 0 if there is none; run alone sets it.
	tunnel atomic.Int64
}

func newEngine(cfg Config, ns host.Namespace) *engine {
	e := &engine{
		cfg: cfg, ns: ns, ways: &routes.Plan{}, ready: make(chan struct{}), wake: make(chan struct{}, 1),
		ports: make(map[uint32]struct{}), flows: newFlows(ns, cfg.Logger), dirty: todo{what: everything},
		services: cfg.Informers.Core().V1().Services().Lister(), serviceCIDRs: cfg.Informers.Networking().V1().ServiceCIDRs().Lister(), networks: cfg.ServiceCIDRs,
		slices: cfg.Informers.Discovery().V1().EndpointSlices().Informer().GetIndexer(),
	}
	e.prober, e.relay = e.newProber(), e.newRelay()
	return e
}

// note tells the engine that something changed; it never blocks.
func (e *engine) note(t touched) { e.owe(todo{what: t}) }

// noteService tells the engine that a service or its endpoints changed; it never blocks.
func (e *engine) noteService(namespace, name string) {
	e.mu.Lock()
	if e.dirty.what&allTouched == 0 {
		if e.dirty.services == nil {
			e.dirty.services = make(map[string]struct{})
		}
		e.dirty.services[namespace+"/"+name] = struct{}{}
	}
	e.mu.Unlock()
	e.rouse()
}

func (e *engine) owe(t todo) {
	e.mu.Lock()
	e.dirty.add(t)
	e.mu.Unlock()
	e.rouse()
}

func (e *engine) rouse() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *engine) take() todo {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.dirty
	e.dirty = todo{}
	return t
}

// own remembers a netlink port as ours.
func (e *engine) own(port uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ports[port] = struct{}{}
}

// owns tells whether a netlink port is ours. It may be called at any time.
func (e *engine) owns(port uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, yes := e.ports[port]
	return yes
}

func (e *engine) run(ctx context.Context) error {
	h, err := host.Open(e.cfg.hostConfig(e.ns))
	if err != nil {
		return err
	}
	e.host = h
	defer h.Close()
	defer e.closeProxies()
	ready := sync.OnceFunc(func() { close(e.ready) })
	e.note(everything)
	wait, again := time.NewTimer(0), time.NewTimer(0)
	defer wait.Stop()
	defer again.Stop()
	var owed todo // what failed before, or can wait
	for delay := retry; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.wake: // the first of many changes at once; others gather while it is carried out
		case <-again.C:
		}
		t := e.take()
		t.add(owed)
		owed = todo{}
		if later := e.patience.later(&t, time.Now(), e.cfg.Logger); later > 0 {
			owed = todo{what: rulesTouched, by: t.by}
			again.Reset(later)
		}
		var done bool
		err := fault.Contain("overlay/engine", func() (err error) {
			fault.Point("overlay/engine")
			done, err = e.apply(t)
			return err
		})
		if errors.Is(err, fault.ErrPanic) {
			t.add(todo{what: everything}) // half of it may be done
		}
		if done {
			ready()
		}
		if err == nil {
			e.failed, delay = "", retry
			continue
		}
		if text := err.Error(); text != e.failed {
			e.cfg.Logger.Warn("node network not as it should be", "err", err)
			e.failed = text
		}
		t.by = ""
		owed.add(t)
		again.Reset(delay)
		delay = min(2*delay, retryMost)
		pause(ctx, wait, breath)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, t *time.Timer, d time.Duration) {
	t.Reset(d)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// apply makes right what was touched; done is false as long as the node has no pod network yet. A way to another node that
// cannot be made is an error, but keeps nothing else from being done.
func (e *engine) apply(work todo) (done bool, err error) {
	t := work.what
	if t&nodeTouched != 0 {
		anew, err := e.learnPods()
		if err != nil {
			return false, err
		}
		if anew {
			t |= allTouched | servicesTouched
		}
	}
	if e.proxies == nil {
		return false, nil
	}
	if t&(nodeTouched|linksTouched) != 0 {
		if err := e.host.Apply(); err != nil {
			return false, fmt.Errorf("links: %w", err)
		}
	}
	var apart error
	if t&(nodeTouched|linksTouched|peersTouched) != 0 {
		var more touched
		more, apart = e.connect()
		t |= more
	}
	if t&(nodeTouched|mtuTouched) != 0 {
		if err := e.writeConflist(); err != nil {
			return false, errors.Join(apart, fmt.Errorf("CNI configuration: %w", err))
		}
	}
	if work.what = t; t&(rulesTouched|servicesTouched|allTouched) != 0 || len(work.services) > 0 {
		if err := e.applyServices(work); err != nil {
			return false, errors.Join(apart, err)
		}
	}
	return true, apart
}

// learnPods reads the node's pod networks and zone, and makes tables for them; anew: all services have to be worked out
// again.
func (e *engine) learnPods() (anew bool, err error) {
	node, err := e.cfg.Informers.Core().V1().Nodes().Lister().Get(e.cfg.NodeName)
	if err != nil {
		return false, nil // not registered yet; its arrival wakes us
	}
	if zone := node.Labels[v1.LabelTopologyZone]; zone != e.zone {
		e.zone, anew = zone, true
		for _, p := range e.proxies {
			p.view.Zone = zone
		}
	}
	if networks := serviceNetworks(e.cfg.ServiceCIDRs, e.serviceCIDRs); !slices.Equal(networks, e.networks) {
		e.networks, anew = networks, true
		e.host.Serve(networks)
		e.renetwork(networks)
		for _, p := range e.proxies {
			p.view.Services = networks
		}
	}
	pods, err := podNetworks(node)
	if e.cfg.ForeignPods {
		pods, err = nil, nil
	} else if len(pods) == 0 {
		return anew, err
	}
	if err != nil || e.proxies != nil && slices.Equal(pods, e.pods) {
		return anew, err
	}
	var gateways []netip.Prefix
	for _, p := range pods {
		gateways = append(gateways, netip.PrefixFrom(p.Addr().Next(), p.Bits()))
	}
	e.host.Configure(gateways)
	if err := e.openProxies(pods); err != nil {
		return false, err
	}
	e.pods = pods
	e.cfg.Logger.Info("pod network", "node", e.cfg.NodeName, "cidrs", fmt.Sprint(pods))
	return true, nil
}

// serviceNetworks are the configured networks of Services and those of ServiceCIDRs, in order. One that was never ready
// holds addresses of others and is left out; one on its way out still has Services.
func serviceNetworks(configured []netip.Prefix, lister networkinglisters.ServiceCIDRLister) []netip.Prefix {
	objects, _ := lister.List(labels.Everything()) // a cache's list does not fail
	var more []netip.Prefix
	for _, o := range objects {
		ready := meta.FindStatusCondition(o.Status.Conditions, networking.ServiceCIDRConditionReady)
		if ready == nil || ready.Status != metav1.ConditionTrue && ready.Reason != networking.ServiceCIDRReasonTerminating {
			continue
		}
		for _, text := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(configured, p.Masked()) {
				more = append(more, p.Masked())
			}
		}
	}
	slices.SortFunc(more, netip.Prefix.Compare)
	return slices.Concat(configured, slices.Compact(more))
}

func podNetworks(node *v1.Node) ([]netip.Prefix, error) {
	texts := node.Spec.PodCIDRs
	if len(texts) == 0 && node.Spec.PodCIDR != "" {
		texts = []string{node.Spec.PodCIDR}
	}
	var pods []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("node %s: pod network: %w", node.Name, err)
		}
		pods = append(pods, p.Masked())
	}
	return pods, nil
}
