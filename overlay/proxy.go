package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/overlay/services"
	"github.com/balsahq/balsa/overlay/services/rules"
)

// byService is an index of EndpointSlices by "namespace/name" of their Service.
const byService = "balsa.service"

// indexSlices adds the index, unless another user of the informer has added it.
func indexSlices(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[byService]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		slice, ok := obj.(*discovery.EndpointSlice)
		if !ok || slice.Labels[discovery.LabelServiceName] == "" {
			return nil, nil
		}
		return []string{slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName]}, nil
	}})
}

// proxy routes the Services of one address family.
type proxy struct {
	view  services.View
	plan  *services.Plan
	table *rules.Table
	// faults are the last logged faults of each Service, rivals the last logged conflicts of all, so that each is logged
	// once.
	faults  map[string]string
	rivalry int
	rivals  string
	others  string // the last logged chains of other programs in the table
}

// openProxies opens a table for each address family of the pods, in place of those that are open.
func (e *engine) openProxies(pods []netip.Prefix) error {
	e.closeProxies()
	families := pods
	if e.cfg.ForeignPods {
		families = e.cfg.PodCIDRs
	}
	for _, v4 := range []bool{true, false} {
		if len(ofFamily(families, v4)) == 0 {
			continue
		}
		table, err := rules.Open(rules.Config{
			V4: v4, Pods: ofFamily(e.cfg.PodCIDRs, v4), NodePods: ofFamily(pods, v4), Bridge: e.cfg.Bridge, Mark: e.cfg.Mark,
			Tunnel: e.cfg.tunnelPort(), VXLAN: e.cfg.Mode != routes.UDP && e.cfg.Mode != routes.WireGuard,
		}, e.ns.FD())
		if err != nil {
			return err
		}
		e.addOwnPort(table.Port())
		e.proxies = append(e.proxies, &proxy{
			view:  services.View{V4: v4, Node: e.cfg.NodeName, Zone: e.zone, Services: e.networks, Reserved: e.reserved, Own: e.cfg.DNS},
			plan:  services.NewPlan(),
			table: table, faults: make(map[string]string),
		})
	}
	return nil
}

func (e *engine) closeProxies() {
	for _, p := range e.proxies {
		p.table.Close()
	}
	e.proxies = nil
}

// applyServices brings the kernel up to date with the services of the work, or with all.
func (e *engine) applyServices(t work) error {
	var errs []error
	for _, p := range e.proxies {
		if t.dirty&allServicesDirty != 0 {
			e.planAll(p)
		} else {
			for name := range t.services {
				e.planByName(p, name)
			}
		}
		if t.dirty&(allServicesDirty|hostPortsDirty) != 0 {
			p.plan.SetHostPorts(services.HostPorts(e.podsWithHostPorts(), p.view.V4))
			p.plan.SetMembers(addressesOf(e.routePlan.Members, p.view.V4), sourcesOf(e.routePlan.Sources, p.view.V4))
		}
		if t.dirty&rulesDirty != 0 {
			p.table.Forget()
		}
		delta, err := p.table.Apply(p.plan)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.flows.enqueue(p.view.V4, delta.Stale)
		e.logConflicts(p)
	}
	return errors.Join(errs...)
}

// planAll plans all services that exist, and removes all others from the plan.
func (e *engine) planAll(p *proxy) {
	services, _ := e.services.List(labels.Everything()) // a cache's list never fails
	there := make(map[string]struct{}, len(services))
	for _, svc := range services {
		name := svc.Namespace + "/" + svc.Name
		there[name] = struct{}{}
		e.planService(p, name, svc)
	}
	for _, name := range p.plan.Owners() {
		if _, ok := there[name]; !ok {
			e.planService(p, name, nil)
		}
	}
}

func (e *engine) planByName(p *proxy, name string) {
	namespace, short, _ := strings.Cut(name, "/")
	svc, err := e.services.Services(namespace).Get(short)
	if err == nil || apierrors.IsNotFound(err) { // a cache's lister has no other error
		e.planService(p, name, svc)
	}
}

// planService plans one service; nil removes it.
func (e *engine) planService(p *proxy, name string, svc *v1.Service) {
	if svc == nil {
		p.plan.SetService(name, nil)
		delete(p.faults, name)
		return
	}
	ports, faults := services.Ports(svc, slicesOf(e.slices, name), p.view)
	p.plan.SetService(name, ports)
	text := strings.Join(faults, "; ")
	if text == "" {
		delete(p.faults, name)
	} else if p.faults[name] != text {
		p.faults[name] = text
		e.cfg.Logger.Warn("parts of a Service cannot be used; they are left out", "service", name, "faults", text)
	}
}

func slicesOf(indexer cache.Indexer, service string) []*discovery.EndpointSlice {
	objects, _ := indexer.ByIndex(byService, service) // New added the index, so there is no error
	list := make([]*discovery.EndpointSlice, 0, len(objects))
	for _, obj := range objects {
		if slice, ok := obj.(*discovery.EndpointSlice); ok {
			list = append(list, slice)
		}
	}
	return list
}

func (e *engine) podsWithHostPorts() []*v1.Pod {
	if e.cfg.Pods == nil {
		return nil
	}
	var pods []*v1.Pod
	for _, obj := range e.cfg.Pods.GetStore().List() {
		if pod, ok := obj.(*v1.Pod); ok && pod.Spec.NodeName == e.cfg.NodeName && hasHostPort(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// logConflicts logs conflicts of Services and chains of other programs, each once.
func (e *engine) logConflicts(p *proxy) {
	if n := p.plan.ConflictVersion(); n != p.rivalry {
		rivals := p.plan.Conflicts()
		if text := strings.Join(rivals[:min(len(rivals), 20)], "; "); text != p.rivals && text != "" {
			e.cfg.Logger.Warn("several Services want the same address or port; the first by name gets it", "conflicts", text)
			p.rivals = text
		}
		p.rivalry = n
	}
	if text := fmt.Sprint(p.table.ForeignChains()); text != p.others {
		if p.others = text; text != "[]" {
			e.cfg.Logger.Warn("another program added chains to Balsa's nftables table; they are lost when the table is rebuilt", "table", p.table.String(), "chains", text)
		}
	}
}

// sourcesOf returns the sources whose member's address is of the family.
func sourcesOf(list []routes.Source, v4 bool) []services.TunnelSource {
	var out []services.TunnelSource
	for _, s := range list {
		if s.Member.Is4() == v4 {
			out = append(out, services.TunnelSource(s))
		}
	}
	return out
}

func addressesOf(list []netip.Addr, v4 bool) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if a = a.Unmap(); a.Is4() == v4 {
			out = append(out, a)
		}
	}
	return out
}
