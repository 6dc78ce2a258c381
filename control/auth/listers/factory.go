package listers

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	admissioninformers "k8s.io/client-go/informers/admissionregistration"
	admissioninformersv1 "k8s.io/client-go/informers/admissionregistration/v1"
	coreinformers "k8s.io/client-go/informers/core"
	coreinformersv1 "k8s.io/client-go/informers/core/v1"
	networkinginformers "k8s.io/client-go/informers/networking"
	networkinginformersv1 "k8s.io/client-go/informers/networking/v1"
	nodeinformers "k8s.io/client-go/informers/node"
	nodeinformersv1 "k8s.io/client-go/informers/node/v1"
	schedulinginformers "k8s.io/client-go/informers/scheduling"
	schedulinginformersv1 "k8s.io/client-go/informers/scheduling/v1"
	storageinformers "k8s.io/client-go/informers/storage"
	storageinformersv1 "k8s.io/client-go/informers/storage/v1"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	nodelisters "k8s.io/client-go/listers/node/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
)

// Factory is an informers.SharedInformerFactory. For the kinds that admission reads, its listers read the store, and
// its "informers" are synced from the start and run nothing. All other kinds come from the wrapped factory.
type Factory struct {
	informers.SharedInformerFactory
	store *Store

	mutating, validating, devices *notifier
}

// NewFactory wraps a factory. The wrapped factory has to be started only if a kind is used that Factory does not read
// from the store.
func NewFactory(store *Store, wrapped informers.SharedInformerFactory) *Factory {
	f := &Factory{SharedInformerFactory: wrapped, store: store}
	f.mutating = newNotifier(store.Kept(resource("admissionregistration.k8s.io", "mutatingwebhookconfigurations")))
	f.validating = newNotifier(store.Kept(resource("admissionregistration.k8s.io", "validatingwebhookconfigurations")))
	f.devices = newNotifier(store.Kept(resource("resource.k8s.io", "deviceclasses")))
	return f
}

func resource(group, name string) schema.GroupResource {
	return schema.GroupResource{Group: group, Resource: name}
}

// MutatingWebhooks returns the number of configurations. Before that it reports changes since the last call to the
// handlers.
func (f *Factory) MutatingWebhooks() int { return f.mutating.refresh() }

// ValidatingWebhooks is MutatingWebhooks for validating configurations.
func (f *Factory) ValidatingWebhooks() int { return f.validating.refresh() }

// OnDeviceClass registers h for changes of DeviceClasses, which DeviceClasses reports.
func (f *Factory) OnDeviceClass(h cache.ResourceEventHandler) { f.devices.add(h) }

// DeviceClasses returns the number of DeviceClasses. Before that it reports changes since the last call to the
// handlers.
func (f *Factory) DeviceClasses() int { return f.devices.refresh() }

// handle is an "informer": it has the store's lister, is always synced, and has no goroutine.
type handle[L any] struct {
	synced
	lister L
}

func (h handle[L]) Lister() L                           { return h.lister }
func (h handle[L]) Informer() cache.SharedIndexInformer { return h.synced }

// synced implements the part of SharedIndexInformer that readers of a lister use.
type synced struct {
	cache.SharedIndexInformer // nil: all other methods panic
	indexer                   *Indexer
	notify                    *notifier
}

func (s synced) HasSynced() bool                 { return true }
func (s synced) GetIndexer() cache.Indexer       { return s.indexer }
func (s synced) GetStore() cache.Store           { return s.indexer }
func (s synced) LastSyncResourceVersion() string { return s.indexer.LastStoreSyncResourceVersion() }
func (s synced) IsStopped() bool                 { return false }

func (s synced) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if s.notify == nil {
		return nil, ErrReadOnly
	}
	s.notify.add(h)
	return registration{}, nil
}

type registration struct {
	cache.ResourceEventHandlerRegistration
}

func (registration) HasSynced() bool { return true }

func (s *Store) kept(group, name string) synced {
	return synced{indexer: s.Kept(resource(group, name))}
}
func (s *Store) fresh(group, name string) synced {
	return synced{indexer: s.Fresh(resource(group, name))}
}

// notifier reports changes of a small kind to event handlers. It compares the store with its last state when refresh is
// called, so it needs no watch.
type notifier struct {
	indexer *Indexer

	mu       sync.Mutex
	revision int64
	seen     map[string]entry
	handlers []cache.ResourceEventHandler
}

func newNotifier(i *Indexer) *notifier {
	return &notifier{indexer: i, seen: map[string]entry{}, revision: -1}
}

func (n *notifier) add(h cache.ResourceEventHandler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handlers = append(n.handlers, h)
	for _, e := range n.seen {
		h.OnAdd(e.obj, true)
	}
}

// refresh reports changes to the handlers and returns the number of objects.
func (n *notifier) refresh() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	snap := n.indexer.store.cfg.Snapshot()
	if snap.Revision() == n.revision {
		return len(n.seen)
	}
	n.revision = snap.Revision()
	now := map[string]bool{}
	snap.Scan(n.indexer.prefix, func(key string, value []byte, mod int64) bool {
		now[key] = true
		n.compare(key, value, mod)
		return true
	})
	for key, e := range n.seen {
		if !now[key] {
			delete(n.seen, key)
			n.tell(func(h cache.ResourceEventHandler) { h.OnDelete(e.obj) })
		}
	}
	return len(n.seen)
}

func (n *notifier) compare(key string, value []byte, mod int64) {
	old, had := n.seen[key]
	if had && old.modRevision == mod {
		return
	}
	obj, err := n.indexer.object(key, value, mod)
	if err != nil {
		return
	}
	n.seen[key] = entry{mod, obj}
	n.tell(func(h cache.ResourceEventHandler) {
		if had {
			h.OnUpdate(old.obj, obj)
		} else {
			h.OnAdd(obj, false)
		}
	})
}

func (n *notifier) tell(fn func(cache.ResourceEventHandler)) {
	for _, h := range n.handlers {
		fn(h)
	}
}

// Core returns the informers of core kinds.
func (f *Factory) Core() coreinformers.Interface {
	return core{f.SharedInformerFactory.Core(), f.store}
}

// Storage returns the informers of storage.k8s.io.
func (f *Factory) Storage() storageinformers.Interface {
	return storage{f.SharedInformerFactory.Storage(), f.store}
}

// Scheduling returns the informers of scheduling.k8s.io.
func (f *Factory) Scheduling() schedulinginformers.Interface {
	return scheduling{f.SharedInformerFactory.Scheduling(), f.store}
}

// Node returns the informers of node.k8s.io.
func (f *Factory) Node() nodeinformers.Interface {
	return node{f.SharedInformerFactory.Node(), f.store}
}

// Networking returns the informers of networking.k8s.io.
func (f *Factory) Networking() networkinginformers.Interface {
	return networking{f.SharedInformerFactory.Networking(), f.store}
}

// Admissionregistration returns the informers of webhook configurations.
func (f *Factory) Admissionregistration() admissioninformers.Interface {
	return registrations{f.SharedInformerFactory.Admissionregistration(), f}
}

type core struct {
	coreinformers.Interface
	s *Store
}

func (c core) V1() coreinformersv1.Interface { return coreV1{c.Interface.V1(), c.s} }

type coreV1 struct {
	coreinformersv1.Interface
	s *Store
}

func (c coreV1) Namespaces() coreinformersv1.NamespaceInformer {
	i := c.s.kept("", "namespaces")
	return handle[corelisters.NamespaceLister]{i, corelisters.NewNamespaceLister(i.indexer)}
}

func (c coreV1) LimitRanges() coreinformersv1.LimitRangeInformer {
	i := c.s.kept("", "limitranges")
	return handle[corelisters.LimitRangeLister]{i, corelisters.NewLimitRangeLister(i.indexer)}
}

func (c coreV1) ServiceAccounts() coreinformersv1.ServiceAccountInformer {
	i := c.s.kept("", "serviceaccounts")
	return handle[corelisters.ServiceAccountLister]{i, corelisters.NewServiceAccountLister(i.indexer)}
}

func (c coreV1) ResourceQuotas() coreinformersv1.ResourceQuotaInformer {
	i := c.s.kept("", "resourcequotas")
	return handle[corelisters.ResourceQuotaLister]{i, corelisters.NewResourceQuotaLister(i.indexer)}
}

func (c coreV1) Pods() coreinformersv1.PodInformer {
	i := c.s.fresh("", "pods")
	return handle[corelisters.PodLister]{i, corelisters.NewPodLister(i.indexer)}
}

func (c coreV1) Nodes() coreinformersv1.NodeInformer {
	i := c.s.fresh("", "nodes")
	return handle[corelisters.NodeLister]{i, corelisters.NewNodeLister(i.indexer)}
}

func (c coreV1) Secrets() coreinformersv1.SecretInformer {
	i := c.s.fresh("", "secrets")
	return handle[corelisters.SecretLister]{i, corelisters.NewSecretLister(i.indexer)}
}

func (c coreV1) PersistentVolumeClaims() coreinformersv1.PersistentVolumeClaimInformer {
	i := c.s.fresh("", "persistentvolumeclaims")
	return handle[corelisters.PersistentVolumeClaimLister]{i, corelisters.NewPersistentVolumeClaimLister(i.indexer)}
}

func (c coreV1) PersistentVolumes() coreinformersv1.PersistentVolumeInformer {
	i := c.s.fresh("", "persistentvolumes")
	return handle[corelisters.PersistentVolumeLister]{i, corelisters.NewPersistentVolumeLister(i.indexer)}
}

type storage struct {
	storageinformers.Interface
	s *Store
}

func (c storage) V1() storageinformersv1.Interface { return storageV1{c.Interface.V1(), c.s} }

type storageV1 struct {
	storageinformersv1.Interface
	s *Store
}

func (c storageV1) StorageClasses() storageinformersv1.StorageClassInformer {
	i := c.s.kept("storage.k8s.io", "storageclasses")
	return handle[storagelisters.StorageClassLister]{i, storagelisters.NewStorageClassLister(i.indexer)}
}

func (c storageV1) CSIDrivers() storageinformersv1.CSIDriverInformer {
	i := c.s.kept("storage.k8s.io", "csidrivers")
	return handle[storagelisters.CSIDriverLister]{i, storagelisters.NewCSIDriverLister(i.indexer)}
}

type scheduling struct {
	schedulinginformers.Interface
	s *Store
}

func (c scheduling) V1() schedulinginformersv1.Interface { return schedulingV1{c.Interface.V1(), c.s} }

type schedulingV1 struct {
	schedulinginformersv1.Interface
	s *Store
}

func (c schedulingV1) PriorityClasses() schedulinginformersv1.PriorityClassInformer {
	i := c.s.kept("scheduling.k8s.io", "priorityclasses")
	return handle[schedulinglisters.PriorityClassLister]{i, schedulinglisters.NewPriorityClassLister(i.indexer)}
}

type node struct {
	nodeinformers.Interface
	s *Store
}

func (c node) V1() nodeinformersv1.Interface { return nodeV1{c.Interface.V1(), c.s} }

type nodeV1 struct {
	nodeinformersv1.Interface
	s *Store
}

func (c nodeV1) RuntimeClasses() nodeinformersv1.RuntimeClassInformer {
	i := c.s.kept("node.k8s.io", "runtimeclasses")
	return handle[nodelisters.RuntimeClassLister]{i, nodelisters.NewRuntimeClassLister(i.indexer)}
}

type networking struct {
	networkinginformers.Interface
	s *Store
}

func (c networking) V1() networkinginformersv1.Interface { return networkingV1{c.Interface.V1(), c.s} }

type networkingV1 struct {
	networkinginformersv1.Interface
	s *Store
}

func (c networkingV1) IngressClasses() networkinginformersv1.IngressClassInformer {
	i := c.s.kept("networking.k8s.io", "ingressclasses")
	return handle[networkinglisters.IngressClassLister]{i, networkinglisters.NewIngressClassLister(i.indexer)}
}

type registrations struct {
	admissioninformers.Interface
	f *Factory
}

func (c registrations) V1() admissioninformersv1.Interface {
	return registrationsV1{c.Interface.V1(), c.f}
}

type registrationsV1 struct {
	admissioninformersv1.Interface
	f *Factory
}

func (c registrationsV1) MutatingWebhookConfigurations() admissioninformersv1.MutatingWebhookConfigurationInformer {
	i := synced{indexer: c.f.mutating.indexer, notify: c.f.mutating}
	return handle[admissionlisters.MutatingWebhookConfigurationLister]{i, admissionlisters.NewMutatingWebhookConfigurationLister(i.indexer)}
}

func (c registrationsV1) ValidatingWebhookConfigurations() admissioninformersv1.ValidatingWebhookConfigurationInformer {
	i := synced{indexer: c.f.validating.indexer, notify: c.f.validating}
	return handle[admissionlisters.ValidatingWebhookConfigurationLister]{i, admissionlisters.NewValidatingWebhookConfigurationLister(i.indexer)}
}
