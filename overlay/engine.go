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

// dirty is a set of parts that have to be compared with their desired state.
type dirty uint8

const (
	nodeDirty  dirty = 1 << iota
	peersDirty       // the routes to other nodes
	linksDirty
	rulesDirty       // another program changed the network's nftables
	hostPortsDirty   // host ports, or the members of the tunnel
	allServicesDirty // every service
	mtuDirty         // the MTU of pods changed

	everything = nodeDirty | peersDirty | linksDirty | rulesDirty | hostPortsDirty | allServicesDirty
)

// work is the engine's pending work.
type work struct {
	dirty    dirty
	services map[string]struct{} // by "namespace/name"
	program  string              // the program that changed the nftables, as nft.Foreign names it
}

func (t *work) add(other work) {
	t.dirty |= other.dirty
	if other.program != "" {
		t.program = other.program
	}
	if t.dirty&allServicesDirty != 0 {
		t.services = nil // allServicesDirty includes them
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

// engine is the only writer to the kernel, except for NetworkPolicies.
type engine struct {
	cfg   Config
	ns    host.Namespace
	ready chan struct{}
	// zoneWrite orders the handlers that fill the DNS zone.
	zoneWrite sync.Mutex

	services     corelisters.ServiceLister
	serviceCIDRs networkinglisters.ServiceCIDRLister
	slices       cache.Indexer // of EndpointSlices, with the index byService

	mu      sync.Mutex
	pending work
	ports   map[uint32]struct{} // the netlink ports of this process
	wake    chan struct{}

	flows *staleFlows
	// setZoneNetworks tells the DNS zone which networks are those of Services.
	setZoneNetworks func(services []netip.Prefix)

	// Owned by run.
	host      *host.Host
	pods      []netip.Prefix // this node's pod networks
	networks  []netip.Prefix // of Services
	reserved  *services.Reserved
	zone      string       // the node's label topology.kubernetes.io/zone
	proxies   []*proxy     // empty before the Node is known
	routePlan *routes.Plan // to other nodes; empty before the first comparison
	lastError string       // the last error logged, so that a repeated error is logged once
	repairs   repairLimit  // limits repairs after changes by other programs

	// prober and relay get the tunnel of the routePlan.
	prober *pmtu.Prober
	relay  *relay.Relay

	metrics *metrics

	// tunnel is the index of the tunnel's link, 0 if there is none; run alone sets it.
	tunnel atomic.Int64
}

func newEngine(cfg Config, ns host.Namespace) *engine {
	e := &engine{
		cfg: cfg, ns: ns, routePlan: &routes.Plan{}, ready: make(chan struct{}), wake: make(chan struct{}, 1),
		metrics: newMetrics(), ports: make(map[uint32]struct{}), flows: newFlows(ns, cfg.Logger), pending: work{dirty: everything},
		services: cfg.Informers.Core().V1().Services().Lister(), serviceCIDRs: cfg.Informers.Networking().V1().ServiceCIDRs().Lister(), networks: cfg.ServiceCIDRs,
		slices: cfg.Informers.Discovery().V1().EndpointSlices().Informer().GetIndexer(),
	}
	e.prober, e.relay = e.newProber(), e.newRelay()
	return e
}

// markDirty makes the engine compare the parts; it does not block.
func (e *engine) markDirty(t dirty) { e.addWork(work{dirty: t}) }

// markService makes the engine plan a Service again; it does not block.
func (e *engine) markService(namespace, name string) {
	e.mu.Lock()
	if e.pending.dirty&allServicesDirty == 0 {
		if e.pending.services == nil {
			e.pending.services = make(map[string]struct{})
		}
		e.pending.services[namespace+"/"+name] = struct{}{}
	}
	e.mu.Unlock()
	e.wakeRun()
}

func (e *engine) addWork(t work) {
	e.mu.Lock()
	e.pending.add(t)
	e.mu.Unlock()
	e.wakeRun()
}

func (e *engine) wakeRun() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *engine) takeWork() work {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.pending
	e.pending = work{}
	return t
}

// addOwnPort records a netlink port of this process.
func (e *engine) addOwnPort(port uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ports[port] = struct{}{}
}

// isOwnPort reports whether a netlink port belongs to this process. It may be called from any goroutine.
func (e *engine) isOwnPort(port uint32) bool {
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
	e.markDirty(everything)
	wait, again := time.NewTimer(0), time.NewTimer(0)
	defer wait.Stop()
	defer again.Stop()
	var owed work // work that failed before or that is postponed
	for delay := retry; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.wake: // the first of many changes is applied at once; the others collect meanwhile
		case <-again.C:
		}
		t := e.takeWork()
		t.add(owed)
		owed = work{}
		if later := e.repairs.postpone(&t, time.Now(), e.cfg.Logger); later > 0 {
			owed = work{dirty: rulesDirty, program: t.program}
			again.Reset(later)
		}
		var done bool
		err := fault.Contain("overlay/engine", func() (err error) {
			fault.Point("overlay/engine")
			done, err = e.apply(t)
			return err
		})
		if errors.Is(err, fault.ErrPanic) {
			t.add(work{dirty: everything}) // after a panic, the work may be half done
		}
		if done {
			ready()
		}
		if err == nil {
			e.lastError, delay = "", retry
			continue
		}
		if text := err.Error(); text != e.lastError {
			e.cfg.Logger.Warn("the node's network is not complete; the node tries again", "err", err)
			e.lastError = text
		}
		t.program = ""
		owed.add(t)
		again.Reset(delay)
		delay = min(2*delay, retryMost)
		pause(ctx, wait, minRetryGap)
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

// apply compares the dirty parts with the kernel and changes what differs. done is false as long as the node has no pod
// network. A route to another node that cannot be made is an error, but all other parts are still applied.
func (e *engine) apply(work work) (done bool, err error) {
	t := work.dirty
	if t&nodeDirty != 0 {
		replan, err := e.readNode()
		if err != nil {
			return false, err
		}
		if replan {
			t |= allServicesDirty | hostPortsDirty
		}
	}
	if e.proxies == nil {
		return false, nil
	}
	if t&(nodeDirty|linksDirty) != 0 {
		if err := e.host.Apply(); err != nil {
			return false, fmt.Errorf("links: %w", err)
		}
	}
	var apart error
	if t&(nodeDirty|linksDirty|peersDirty) != 0 {
		var more dirty
		more, apart = e.applyRoutes()
		t |= more
	}
	if t&(nodeDirty|mtuDirty) != 0 {
		if err := e.writeConflist(); err != nil {
			return false, errors.Join(apart, fmt.Errorf("CNI configuration: %w", err))
		}
	}
	if work.dirty = t; t&(rulesDirty|hostPortsDirty|allServicesDirty) != 0 || len(work.services) > 0 {
		began := time.Now()
		err := e.applyServices(work)
		e.metrics.synced(began, err)
		if err != nil {
			return false, errors.Join(apart, err)
		}
	}
	return true, apart
}

// readNode reads the Node's pod networks and zone, and opens tables for them. replan is true if all Services have to be
// planned again.
func (e *engine) readNode() (replan bool, err error) {
	node, err := e.cfg.Informers.Core().V1().Nodes().Lister().Get(e.cfg.NodeName)
	if err != nil {
		return false, nil // the Node is not registered yet; the informer's event wakes the engine
	}
	if zone := node.Labels[v1.LabelTopologyZone]; zone != e.zone {
		e.zone, replan = zone, true
		for _, p := range e.proxies {
			p.view.Zone = zone
		}
	}
	if networks := serviceNetworks(e.cfg.ServiceCIDRs, e.serviceCIDRs); !slices.Equal(networks, e.networks) {
		e.networks, replan = networks, true
		e.host.Serve(networks)
		e.setZoneNetworks(networks)
		for _, p := range e.proxies {
			p.view.Services = networks
		}
	}
	pods, err := podNetworks(node)
	if e.cfg.ForeignPods {
		pods, err = nil, nil
	} else if len(pods) == 0 {
		return replan, err
	}
	if err != nil || e.proxies != nil && slices.Equal(pods, e.pods) {
		return replan, err
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

// serviceNetworks returns the configured networks of Services, and then those of ServiceCIDRs, sorted. A ServiceCIDR that
// was never ready is left out, because its addresses may be in other use; one that is being deleted still has Services.
func serviceNetworks(configured []netip.Prefix, lister networkinglisters.ServiceCIDRLister) []netip.Prefix {
	objects, _ := lister.List(labels.Everything()) // a cache's list never fails
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
