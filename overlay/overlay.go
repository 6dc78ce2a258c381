package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/dns"
	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/overlay/services/rules"
)

const (
	// After a failure the engine tries again after retry, then after twice as long each time up to retryMost, or when something
	// changes, but not before minRetryGap.
	retry, retryMost = time.Second, 30 * time.Second
	minRetryGap      = 100 * time.Millisecond
	// dnsRetry is the pause before the DNS server is started again after it failed.
	dnsRetry = 5 * time.Second
)

// Network is the network of one node.
type Network struct {
	cfg    Config
	zone   *dns.Zone
	engine *engine
	server *dns.Server
	ns     host.Namespace
	// nodeSeen has one element when this node's Node object has changed.
	nodeSeen chan struct{}
}

// New prepares a network; the kernel is not touched before Run.
func New(cfg Config) (*Network, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.fill()
	ns, err := host.OpenNamespace(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, zone: dns.NewZone(cfg.Domain, slices.Concat(cfg.PodCIDRs, cfg.ServiceCIDRs)...), ns: ns, nodeSeen: make(chan struct{}, 1)}
	// Asking for an informer registers it, so that the factory starts it.
	cfg.Informers.Core().V1().Services().Informer()
	cfg.Informers.Core().V1().Nodes().Informer()
	cfg.Informers.Networking().V1().ServiceCIDRs().Informer()
	if err := indexSlices(cfg.Informers.Discovery().V1().EndpointSlices().Informer()); err != nil {
		return nil, fmt.Errorf("overlay: %w", errors.Join(err, ns.Close()))
	}
	n.engine = newEngine(cfg, ns)
	n.engine.setZoneNetworks = func(services []netip.Prefix) { n.zone.SetNetworks(slices.Concat(cfg.PodCIDRs, services)...) }
	if len(cfg.DNS) > 0 {
		n.server = dns.NewServer(n.dnsConfig())
	}
	return n, nil
}

func (n *Network) dnsConfig() dns.Config {
	var listen []netip.AddrPort
	for _, a := range n.cfg.DNS {
		listen = append(listen, netip.AddrPortFrom(a, 53))
	}
	return dns.Config{
		Zone: n.zone, Listen: listen, Enter: n.ns.Do, Logger: n.cfg.Logger,
		Upstreams: func() []string {
			servers, err := dns.Resolvers(n.cfg.ResolvConf, n.cfg.DNS)
			if err != nil {
				n.cfg.Logger.Warn("cannot read the host's resolvers; names outside the cluster are not answered", "err", err)
			}
			return servers
		},
	}
}

// Ready is closed when pods can be attached and Services can be reached for the first time.
func (n *Network) Ready() <-chan struct{} { return n.engine.ready }

// Run keeps the network up to date until ctx ends. Links, routes and rules stay in the kernel, so that pods can communicate
// while the process restarts. Cleanup removes them.
func (n *Network) Run(ctx context.Context) error {
	defer n.ns.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	remove, synced, err := n.watch()
	defer remove()
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	n.cfg.Informers.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return ctx.Err()
	}
	parts := []func(context.Context) error{n.engine.run, n.engine.flows.run, n.watchKernel, n.watchRules, n.watchSettings, n.publishKey, n.engine.prober.Run, n.engine.relay.Run}
	if n.server != nil {
		parts = append(parts, n.serveDNS)
	}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- fault.Keep(ctx, "overlay", part) }()
	}
	var errs []error
	for range parts {
		err := <-ended
		cancel() // when one part ends, all end
		if !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// serveDNS serves DNS. If another program has the port, names are not answered, but pods are still attached.
func (n *Network) serveDNS(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for ctx.Err() == nil {
		if err := fault.Contain("overlay/dns", func() error { return n.server.Run(ctx) }); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("the DNS server failed; names are not answered until it has started again", "err", err)
		}
		pause(ctx, again, dnsRetry)
	}
	return ctx.Err()
}

func (n *Network) watchKernel(ctx context.Context) error {
	return host.Watch(ctx, n.ns, n.engine.isTunnel, func() { n.engine.markDirty(linksDirty) })
}

// watchRules wakes the engine when another program changed the network's nftables.
func (n *Network) watchRules(ctx context.Context) error {
	return nft.Watch(ctx, nft.WatchConfig{
		NS: n.ns.FD(), Table: rules.Name, Own: n.engine.isOwnPort,
		Changed: func(f nft.Foreign) { n.engine.addWork(work{dirty: rulesDirty, program: f.Program}) },
	})
}

// watch adds handlers to the informers. remove removes them, and may be called after an error too.
func (n *Network) watch() (remove func(), synced []cache.DoneChecker, err error) {
	core := n.cfg.Informers.Core().V1()
	services, endpoints := core.Services().Informer(), n.cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	type row struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}
	rows := []row{
		{services, onAny(n.serviceChanged)}, {endpoints, n.onSlice()}, {core.Nodes().Informer(), n.onNode()},
		{n.cfg.Informers.Networking().V1().ServiceCIDRs().Informer(), onAny(func(any) { n.engine.markDirty(nodeDirty) })},
	}
	if n.cfg.Pods != nil {
		rows = append(rows, row{n.cfg.Pods, onAny(n.podChanged)})
	}
	var undo []func()
	remove = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, row := range rows {
		registration, err := row.informer.AddEventHandler(eventhandler.Contain("overlay/events", row.handler))
		if err != nil {
			return remove, nil, err
		}
		undo = append(undo, func() { _ = row.informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSyncedChecker())
	}
	return remove, synced, nil
}

// onAny calls fn with the newest version of each object that was added, changed or deleted.
func onAny(fn func(obj any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    fn,
		UpdateFunc: func(_, obj any) { fn(obj) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			fn(obj)
		},
	}
}

// onSlice handles a slice for the Service of its label, and after a change of the label for the former Service too.
func (n *Network) onSlice() cache.ResourceEventHandler {
	h := onAny(n.sliceChanged)
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { h.OnAdd(obj, false) },
		UpdateFunc: func(before, obj any) {
			old, ok := before.(*discovery.EndpointSlice)
			slice, is := obj.(*discovery.EndpointSlice)
			if ok && is && old.Labels[discovery.LabelServiceName] != slice.Labels[discovery.LabelServiceName] {
				n.sliceChanged(before)
			}
			h.OnUpdate(before, obj)
		},
		DeleteFunc: h.OnDelete,
	}
}

// onNode wakes the engine when nodes are added, removed or change their addresses. Periodic status updates are ignored.
func (n *Network) onNode() cache.ResourceEventHandler {
	h := onAny(func(obj any) {
		node, ok := obj.(*v1.Node)
		switch {
		case !ok:
		case node.Name == n.cfg.NodeName:
			n.engine.markDirty(nodeDirty)
			select {
			case n.nodeSeen <- struct{}{}:
			default:
			}
		default:
			n.engine.markDirty(peersDirty)
		}
	})
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { h.OnAdd(obj, false) },
		UpdateFunc: func(before, obj any) {
			old, ok := before.(*v1.Node)
			node, is := obj.(*v1.Node)
			if !ok || !is || routes.NodeOf(old) != routes.NodeOf(node) || old.Labels[v1.LabelTopologyZone] != node.Labels[v1.LabelTopologyZone] ||
				!slices.Equal(old.Status.Addresses, node.Status.Addresses) {
				h.OnUpdate(before, obj)
			}
		},
		DeleteFunc: h.OnDelete,
	}
}

func (n *Network) podChanged(obj any) {
	fault.Point("overlay/events")
	if pod, ok := obj.(*v1.Pod); ok && pod.Spec.NodeName == n.cfg.NodeName && hasHostPort(pod) {
		n.engine.markDirty(hostPortsDirty)
	}
}

func hasHostPort(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.HostPort > 0 {
					return true
				}
			}
		}
	}
	return false
}
