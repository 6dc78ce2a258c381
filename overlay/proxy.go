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

	"github.com/balsahq/balsa/overlay/services"
	"github.com/balsahq/balsa/overlay/services/rules"
)

// byService is an index of EndpointSlices by "namespace/name" of their Service.
const byService = "balsa.service"

// indexSlices adds the index; whoever else did so added the same.
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

// proxy is the services of one address family.
type proxy struct {
	view  services.View
	plan  *services.Plan
	table *rules.Table
	// faults are what was last told of a service, rivals of all; so each is told once.
	faults  map[string]string
	rivalry int
	rivals  string
	others  string // chains of others in the table
}

// openProxies opens a table of each family that pods have addresses of, in place of those there were.
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
			Tunnel: e.cfg.tunnelPort(),
		}, e.ns.FD())
		if err != nil {
			return err
		}
		e.own(table.Port())
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

// applyServices brings the kernel up to date with the services named, or with all.
func (e *engine) applyServices(t todo) error {
	var errs []error
	for _, p := range e.proxies {
		if t.what&allTouched != 0 {
			e.planAll(p)
		} else {
			for name := range t.services {
				e.planNamed(p, name)
			}
		}
		if t.what&(allTouched|servicesTouched) != 0 {
			p.plan.SetHostPorts(services.HostPorts(e.podsHere(), p.view.V4))
			p.plan.SetMembers(addressesOf(e.ways.Members, p.view.V4))
		}
		if t.what&rulesTouched != 0 {
			p.table.Forget()
		}
		delta, err := p.table.Apply(p.plan)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.flows.forget(p.view.V4, delta.Stale)
		e.tellOf(p)
	}
	return errors.Join(errs...)
}

// planAll works out all services there are, and those the plan still has.
func (e *engine) planAll(p *proxy) {
	services, _ := e.services.List(labels.Everything()) // a cache's list does not fail
	there := make(map[string]struct{}, len(services))
	for _, svc := range services {
		name := svc.Namespace + "/" + svc.Name
		there[name] = struct{}{}
		e.plan(p, name, svc)
	}
	for _, name := range p.plan.Owners() {
		if _, ok := there[name]; !ok {
			e.plan(p, name, nil)
		}
	}
}

func (e *engine) planNamed(p *proxy, name string) {
	namespace, short, _ := strings.Cut(name, "/")
	svc, err := e.services.Services(namespace).Get(short)
	if err == nil || apierrors.IsNotFound(err) { // a cache's lister has no other error
		e.plan(p, name, svc)
	}
}

// plan works out one service; nil is none.
func (e *engine) plan(p *proxy, name string, svc *v1.Service) {
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
		e.cfg.Logger.Warn("part of a service is left out", "service", name, "faults", text)
	}
}

func slicesOf(indexer cache.Indexer, service string) []*discovery.EndpointSlice {
	objects, _ := indexer.ByIndex(byService, service) // the index is there: New added it
	list := make([]*discovery.EndpointSlice, 0, len(objects))
	for _, obj := range objects {
		if slice, ok := obj.(*discovery.EndpointSlice); ok {
			list = append(list, slice)
		}
	}
	return list
}

func (e *engine) podsHere() []*v1.Pod {
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

// tellOf logs what people should know of, once.
func (e *engine) tellOf(p *proxy) {
	if n := p.plan.Rivalry(); n != p.rivalry {
		rivals := p.plan.Rivals()
		if text := strings.Join(rivals[:min(len(rivals), 20)], "; "); text != p.rivals && text != "" {
			e.cfg.Logger.Warn("several want one address", "who", text)
			p.rivals = text
		}
		p.rivalry = n
	}
	if text := fmt.Sprint(p.table.ForeignChains()); text != p.others {
		if p.others = text; text != "[]" {
			e.cfg.Logger.Warn("somebody else has put chains into our nftables table, where they do not stay", "table", p.table.String(), "chains", text)
		}
	}
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
