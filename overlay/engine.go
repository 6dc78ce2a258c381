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
	"k8s.io/apimachinery/pkg/labels"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/mesh"
	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/paths"
	"github.com/balsahq/balsa/overlay/relay"
	"github.com/balsahq/balsa/overlay/routing"
)

// touched is what may no longer be as it should.
type touched uint8

const (
	nodeTouched  touched = 1 << iota
	peersTouched         // other nodes
	linksTouched
	rulesTouched    // somebody else changed nftables
	servicesTouched // what should be in nftables changed
	mtuTouched      // what pods may send at once changed
)

// engine is the one writer to the kernel.
type engine struct {
	cfg   Config
	ns    host.Namespace
	ready chan struct{}
	// naming orders the handlers that fill the DNS zone.
	naming sync.Mutex

	mu    sync.Mutex
	dirty touched
	wake  chan struct{}

	// Owned by run.
	host   *host.Host
	pods   []netip.Prefix // this node's pod networks
	table  *nft.Table
	ways   *mesh.Plan // to other nodes; empty before the first look
	failed string     // the last error told, so that it is told once

	// prober and relay are told of the tunnel.
	prober *paths.Prober
	relay  *relay.Relay

	// tunnel is the index of the tunnel's link, 0 if there is none; run alone sets it.
	tunnel atomic.Int64
}

func newEngine(cfg Config, ns host.Namespace) *engine {
	e := &engine{cfg: cfg, ns: ns, ways: &mesh.Plan{}, ready: make(chan struct{}), wake: make(chan struct{}, 1)}
	e.prober, e.relay = e.newProber(), e.newRelay()
	return e
}

// note tells the engine that something changed; it never blocks.
func (e *engine) note(t touched) {
	e.mu.Lock()
	e.dirty |= t
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *engine) take() touched {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.dirty
	e.dirty = 0
	return t
}

func (e *engine) run(ctx context.Context) error {
	h, err := host.Open(e.cfg.hostConfig(e.ns))
	if err != nil {
		return err
	}
	e.host = h
	defer h.Close()
	ready := sync.OnceFunc(func() { close(e.ready) })
	e.note(nodeTouched | peersTouched | linksTouched | rulesTouched | servicesTouched)
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.wake:
		}
		pause(ctx, wait, gather)
		todo := e.take()
		done, err := e.apply(todo)
		if done {
			ready()
		}
		if err != nil {
			if text := err.Error(); text != e.failed {
				e.cfg.Logger.Warn("node network not as it should be", "err", err)
				e.failed = text
			}
			e.note(todo)
			pause(ctx, wait, retry)
			continue
		}
		e.failed = ""
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
func (e *engine) apply(t touched) (done bool, err error) {
	if t&nodeTouched != 0 {
		if err := e.learnPods(); err != nil {
			return false, err
		}
	}
	if e.table == nil {
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
	if t&(nodeTouched|rulesTouched|servicesTouched) != 0 {
		if err := e.applyTable(t&rulesTouched != 0); err != nil {
			return false, errors.Join(apart, err)
		}
	}
	return true, apart
}

// learnPods reads the node's pod networks and makes the table for them.
func (e *engine) learnPods() error {
	node, err := e.cfg.Informers.Core().V1().Nodes().Lister().Get(e.cfg.NodeName)
	if err != nil {
		return nil // not registered yet; its arrival wakes us
	}
	pods, err := podNetworks(node)
	if e.cfg.ForeignPods {
		pods, err = nil, nil
	} else if len(pods) == 0 {
		return err
	}
	if err != nil || e.table != nil && slices.Equal(pods, e.pods) {
		return err
	}
	var gateways []netip.Prefix
	for _, p := range pods {
		gateways = append(gateways, netip.PrefixFrom(p.Addr().Next(), p.Bits()))
	}
	e.host.Configure(gateways)
	table, err := e.openTable(pods)
	if err != nil {
		return err
	}
	e.table, e.pods = table, pods
	e.cfg.Logger.Info("pod network", "node", e.cfg.NodeName, "cidrs", fmt.Sprint(pods))
	return nil
}

func (e *engine) openTable(pods []netip.Prefix) (*nft.Table, error) {
	t, err := nft.Open(nft.Config{
		V4: true, Pods: ofFamily(e.cfg.PodCIDRs, true), NodePods: ofFamily(pods, true), Services: ofFamily(e.cfg.ServiceCIDRs, true),
		Bridge: e.cfg.Bridge, Mark: e.cfg.Mark, Tunnel: e.cfg.tunnelPort(),
	}, e.ns.FD())
	return t, err
}

// applyTable writes the services. look: do not trust what was written before.
func (e *engine) applyTable(look bool) error {
	want, err := e.plan()
	if err != nil {
		return err
	}
	old := e.table.Applied()
	if look {
		e.table.Forget()
	}
	if err := e.ns.Do(func() error { return e.table.Apply(want) }); err != nil {
		return err
	}
	if old != nil {
		e.forgetFlows(routing.StaleFlows(old, want))
	}
	return nil
}

// plan works out the table from the listers.
func (e *engine) plan() (*routing.Table, error) {
	services, err := e.cfg.Informers.Core().V1().Services().Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	endpoints, err := e.cfg.Informers.Discovery().V1().EndpointSlices().Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var pods []*v1.Pod
	if e.cfg.Pods != nil {
		for _, obj := range e.cfg.Pods.GetStore().List() {
			if pod, ok := obj.(*v1.Pod); ok && pod.Spec.NodeName == e.cfg.NodeName {
				pods = append(pods, pod)
			}
		}
	}
	table := routing.Build(routing.Services(services, endpoints, e.cfg.NodeName, true), routing.HostPorts(pods, true),
		ofFamily(e.cfg.PodCIDRs, true))
	for _, a := range e.ways.Members {
		if a.Is4() {
			table.Members[a] = struct{}{}
		}
	}
	// The DNS server answers here even if a Service of that address has no endpoints.
	for at := range table.Nobody {
		for _, a := range e.cfg.DNS {
			if at.IP == a {
				delete(table.Nobody, at)
			}
		}
	}
	return table, nil
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
