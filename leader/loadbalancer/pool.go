package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/workqueue"
)

// Where pools are configured while the cluster runs. Without the ConfigMap those of Config are in force.
const (
	ConfigNamespace = metav1.NamespaceSystem
	ConfigName      = "balsa-load-balancer"
	ConfigKey       = "pools"
)

// Config says which addresses there are.
type Config struct {
	Pools string // as ParsePools reads them; "" is none
	// Taken are the cluster's own networks, by what people call them: no pool may touch them.
	Taken map[string]netip.Prefix
}

// Validate reports every fault of the pools at once.
func (c Config) Validate() error {
	_, err := ParsePools(c.Pools, c.Taken)
	return err
}

// provider implements cloud.LoadBalancers.
type provider struct {
	cfg Config

	mu         sync.Mutex
	pools      Pools
	fromMap    bool  // pools are the ConfigMap's
	configured bool  // a pool is configured, so Services get addresses
	unknown    error // why the pools cannot be read; nil if they are known
}

// New returns the controller that gives Services addresses from pools.
//
// It watches the ConfigMap of the pools, and what package cloud watches for it; it writes nothing itself.
func New(env workqueue.Env, cfg Config) (workqueue.Runner, error) {
	p := &provider{cfg: cfg}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	_, _ = p.configure(nil) // valid
	services, err := cloud.NewServices(env, p)
	if err != nil {
		return nil, err
	}
	maps := coreinformers.NewFilteredConfigMapInformer(env.Reader, ConfigNamespace, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", ConfigName).String()
		})
	changed := func(o any) {
		cm, _ := o.(*v1.ConfigMap)
		if cm != nil && cm.Name != ConfigName {
			return
		}
		differs, err := p.configure(cm)
		if err != nil {
			env.Log.Warn("the pools of load balancer addresses stay as they are", "configmap", ConfigNamespace+"/"+ConfigName, "err", err)
			env.Events.Event(cm, v1.EventTypeWarning, "InvalidPools", err.Error())
		}
		if differs {
			services.Again()
		}
	}
	registration, err := maps.AddEventHandler(eventhandler.Contain("controller events", cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, now any) { changed(now) }, DeleteFunc: func(any) { changed(nil) },
	}))
	if err != nil {
		return nil, fmt.Errorf("watching the pools: %w", err)
	}
	services.Need(registration.HasSyncedChecker())
	return workqueue.RunAll(workqueue.Informer(maps), services), nil
}

// configure takes the pools of the ConfigMap, or without one those of Config. A ConfigMap with a fault leaves in force what
// an earlier form of it said; after a restart that is not known.
func (p *provider) configure(cm *v1.ConfigMap) (differs bool, err error) {
	text, there := p.cfg.Pools, p.cfg.Pools != ""
	if cm != nil {
		text, there = cm.Data[ConfigKey]
	}
	pools, err := ParsePools(text, p.cfg.Taken)
	if cm != nil && !there {
		err = fmt.Errorf("the key %s is missing", ConfigKey)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.configured = cm != nil || there
	if err != nil && p.fromMap {
		return false, err
	}
	p.pools, p.fromMap, p.unknown = pools, cm != nil && err == nil, nil
	switch {
	case err != nil:
		p.pools = nil
		p.unknown = fmt.Errorf("the pools in the ConfigMap %s/%s cannot be read: %w", ConfigNamespace, ConfigName, err)
	case !p.configured:
		p.unknown = errNoPool
	}
	return true, err
}

// Condition implements cloud.LoadBalancers.
func (p *provider) Condition() string { return Condition }

// Serves implements cloud.LoadBalancers: Services of our class, and those without a class once there are pools. Without pools
// another program may serve these.
func (p *provider) Serves(svc *v1.Service) bool {
	if c := svc.Spec.LoadBalancerClass; c != nil {
		return *c == Class
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.configured || meta.FindStatusCondition(svc.Status.Conditions, Condition) != nil
}

// Settle implements cloud.LoadBalancers.
func (p *provider) Settle(_ context.Context, all cloud.Services) []cloud.Outcome {
	p.mu.Lock()
	w := world{pools: p.pools, unknown: p.unknown, used: map[netip.Addr]string{}}
	p.mu.Unlock()
	for _, n := range all.Nodes {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				w.used[addr.Unmap()] = "the node " + n.Name
			}
		}
	}
	var leaving []netip.Addr
	for _, svc := range all.Leaving {
		leaving = append(leaving, held(svc)...)
	}
	requests := make([]request, len(all.Served))
	for i, svc := range all.Served {
		requests[i] = requestOf(svc)
	}
	out := make([]cloud.Outcome, len(requests))
	for i, g := range assign(w, requests, leaving) {
		out[i] = g.outcome()
	}
	return out
}

// Release implements cloud.LoadBalancers: an address is free when no Service has it.
func (p *provider) Release(context.Context, *v1.Service) error { return nil }
