package aggregation

import (
	"context"
	"net/http"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	upstream "k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/balsahq/balsa/fault"
)

// endpointsTimeout bounds the wait for endpoints when the first target of a namespace appears.
const endpointsTimeout = 10 * time.Second

// follower makes the table from the APIServices. One goroutine uses it.
type follower struct {
	a          *Aggregation
	seen       map[string]*apiregistrationv1.APIService // targets, by name
	targets    map[targetKey]*target
	namespaces map[string]*serviceNamespace // by namespace
	manager    *manager                     // nil while there is no target
}

func newFollower(a *Aggregation) *follower {
	return &follower{a: a, seen: map[string]*apiregistrationv1.APIService{}, targets: map[targetKey]*target{}, namespaces: map[string]*serviceNamespace{}}
}

// update updates the table if APIServices have changed since the last call.
func (f *follower) update(ctx context.Context) {
	now := map[string]*apiregistrationv1.APIService{}
	for _, s := range f.a.all() {
		if s.Spec.Service != nil && s.Spec.Group != "" && s.Spec.Group != apiregistrationv1.GroupName {
			now[s.Name] = s
		}
	}
	if len(now) == 0 && len(f.seen) == 0 {
		return
	}
	f.follow(ctx, now)
	targets, next := map[targetKey]*target{}, &table{routes: map[schema.GroupVersion]route{}}
	for _, s := range now {
		t := f.target(s)
		targets[t.targetKey] = t
		next.routes[schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}] = route{
			target: t, name: s.Name, available: helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available),
		}
	}
	next.groups = groupsOf(f.a.all(), now)
	if len(now) == 0 {
		next = nil
	}
	f.a.table.Store(next)
	for p, t := range f.targets {
		if targets[p] == nil {
			t.close()
		}
	}
	f.discover(now, targets)
	f.seen, f.targets = now, targets
	for namespace, area := range f.namespaces {
		if !area.wanted(now) {
			area.stop()
			delete(f.namespaces, namespace)
		}
	}
}

// follow starts to follow the namespaces of new targets.
func (f *follower) follow(ctx context.Context, now map[string]*apiregistrationv1.APIService) {
	var begun []cache.InformerSynced
	for _, s := range now {
		namespace := s.Spec.Service.Namespace
		if f.namespaces[namespace] != nil {
			continue
		}
		area, err := newServiceNamespace(f.a, namespace)
		if err != nil {
			f.a.log.Error("cannot follow the Services of a namespace; APIServices that name one of them stay unavailable", "namespace", namespace, "err", err)
			continue
		}
		f.namespaces[namespace] = area
		begun = append(begun, area.synced)
	}
	patient, cancel := context.WithTimeout(ctx, endpointsTimeout)
	defer cancel()
	cache.WaitForCacheSync(patient.Done(), begun...)
}

// target returns the server of an APIService; an existing one keeps its connections.
func (f *follower) target(s *apiregistrationv1.APIService) *target {
	p := targetKeyOf(s)
	if t := f.targets[p]; t != nil {
		return t
	}
	t := newTarget(p, f.a.cfg, f.namespaces[p.namespace].resolve)
	if t.fault != nil {
		f.a.log.Warn("cannot reach the server of an APIService; requests to it are answered with 503", "apiservice", s.Name, "err", t.fault)
	}
	f.targets[p] = t
	return t
}

// discover gives changed targets to upstream's discovery manager and removes targets that are gone.
func (f *follower) discover(now map[string]*apiregistrationv1.APIService, targets map[targetKey]*target) {
	for name, s := range f.seen {
		if now[name] == nil && f.manager != nil {
			f.manager.remove(s)
		}
	}
	if len(now) == 0 {
		if f.manager != nil {
			f.manager.stop()
			f.manager = nil
		}
		return
	}
	if f.manager == nil {
		f.manager = newManager(f.a.cfg.Discovery)
	}
	for name, s := range now {
		if f.seen[name] != s {
			f.manager.add(s, f.seen[name] == nil, targets[targetKeyOf(s)])
		}
	}
}

// stop ends everything that was started for targets. From then on requests to targets are refused.
func (f *follower) stop() {
	for _, t := range f.targets {
		t.close()
	}
	for _, area := range f.namespaces {
		area.stop()
	}
	if f.manager != nil {
		f.manager.stop()
	}
}

// manager is upstream's discovery manager. It reads the discovery documents of targets when they change and every
// minute, and adds them to the document of /apis.
type manager struct {
	upstream.DiscoveryAggregationController
	document aggregated.ResourceManager
	done     chan struct{}
	running  sync.WaitGroup
}

func newManager(document aggregated.ResourceManager) *manager {
	document = document.WithSource(aggregated.AggregatorSource)
	m := &manager{DiscoveryAggregationController: upstream.NewDiscoveryManager(document), document: document, done: make(chan struct{})}
	m.running.Go(fault.Contained("control/aggregation", func() { m.Run(m.done, nil) }))
	return m
}

// add adds a target. A new one is shown as stale until its discovery document has been read; a missing group would mean
// that it is not served.
func (m *manager) add(s *apiregistrationv1.APIService, unseen bool, handler http.Handler) {
	if unseen {
		m.document.AddGroupVersion(s.Spec.Group, apidiscoveryv2.APIVersionDiscovery{Version: s.Spec.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale})
		m.document.SetGroupVersionPriority(metav1.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}, int(s.Spec.GroupPriorityMinimum), int(s.Spec.VersionPriority))
	}
	m.AddAPIService(s, documentHandler{handler})
}

func (m *manager) remove(s *apiregistrationv1.APIService) {
	m.RemoveAPIService(s.Name)
	m.document.RemoveGroupVersion(metav1.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version})
}

// stop ends the manager. Pending removals are still done.
func (m *manager) stop() {
	close(m.done)
	m.running.Wait()
}
