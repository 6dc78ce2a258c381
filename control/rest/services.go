package rest

import (
	"context"
	"errors"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/raftstore"
)

// claimAttempts is how often a Service is written with newly chosen addresses after others claimed the chosen ones
// first.
const claimAttempts = 8

// Services serves services: addresses are chosen before a write and claimed within it.
type Services struct {
	*genericregistry.Store
	store     *raftstore.Store
	blocks    blocks
	more      func() blocks
	ports     PortRange
	endpoints *genericregistry.Store
	nodes     *genericregistry.Store
	claims    *claiming
}

// newServices wraps the storage of the Service registry and of its views with the claims, and chooses addresses in its
// hooks.
func newServices(cfg Config, services *genericregistry.Store) *Services {
	s := &Services{Store: services, store: cfg.Store, ports: cfg.NodePorts, endpoints: cfg.Table.Store("", "endpoints"), nodes: cfg.Table.Store("", "nodes")}
	for _, cidr := range cfg.ServiceCIDRs {
		s.blocks = append(s.blocks, block{cidr})
	}
	if cfg.MoreServiceCIDRs != nil {
		s.more = func() (list blocks) {
			for _, cidr := range cfg.MoreServiceCIDRs() {
				list = append(list, block{cidr})
			}
			return list
		}
	}
	var addressKey func(string) string
	if addresses := cfg.Table.Store("networking.k8s.io", "ipaddresses"); addresses != nil {
		addressKey = func(ip string) string {
			key, err := addresses.KeyFunc(request.NewContext(), ip)
			if err != nil {
				return "" // an address is always a valid object name
			}
			return "/registry" + key
		}
	}
	claims := &claiming{Interface: services.Storage.Storage, addressKey: addressKey}
	if cfg.Transformer != nil {
		claims.transformer = cfg.Transformer(schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"})
	}
	s.claims = claims
	services.Storage.Storage = claims
	services.Decorator = s.completeRead
	services.BeginCreate = s.beginCreate
	services.BeginUpdate = s.beginUpdate
	services.AfterDelete = s.afterDelete
	if view := cfg.Table.View("", "services", "status"); view != nil {
		view.Storage.Storage = claims
		view.Decorator = s.completeRead
		view.AfterDelete = s.afterDelete
	}
	return s
}

// chooser reads the newest state. An address that svc itself holds counts as free, so that creating a Service that
// exists fails because it exists, and not because its address is taken.
func (s *Services) chooser(svc *api.Service) *chooser {
	view, owner := s.store.View(), svc.Namespace+"/"+svc.Name
	return &chooser{blocks: s.blocks, more: s.more, ports: s.ports, mine: map[string]bool{}, taken: func(key string) bool {
		if kv := view.Get(key); kv != nil {
			return string(kv.Value) != owner
		}
		object := s.claims.addressOf(key) // a user may have created an IPAddress
		return object != "" && view.Get(object) != nil
	}}
}

// allocate completes svc with the claims in the state that this server has applied. Before it refuses, it reads the
// newest state and tries again: another server may have released an address a moment ago.
func (s *Services) allocate(ctx context.Context, svc *api.Service, complete func(*chooser) error) error {
	asked, since := svc.DeepCopy(), s.store.View().Revision()
	refused := complete(s.chooser(svc))
	if refused == nil {
		return nil
	}
	if view, err := s.store.Barrier(ctx); err != nil || view.Revision() == since {
		return refused
	}
	asked.DeepCopyInto(svc)
	return complete(s.chooser(svc))
}

func (s *Services) beginCreate(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	svc, ok := obj.(*api.Service)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Service: %T", obj))
	}
	pairIPs(svc, nil)
	if err := s.allocate(ctx, svc, func(c *chooser) error { return allocateCreate(svc, c) }); err != nil {
		return nil, err
	}
	s.warnOfExternalIPs(ctx, svc, nil)
	return func(context.Context, bool) {}, nil
}

func (s *Services) beginUpdate(ctx context.Context, obj, oldObj runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	svc, ok := obj.(*api.Service)
	old, ok2 := oldObj.(*api.Service)
	if !ok || !ok2 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Service: %T", obj))
	}
	s.completeRead(old)
	keepAllocated(svc, old)
	pairIPs(svc, old)
	if err := s.allocate(ctx, svc, func(c *chooser) error { return allocateUpdate(svc, old, c) }); err != nil {
		return nil, err
	}
	s.warnOfExternalIPs(ctx, svc, old)
	return func(context.Context, bool) {}, nil
}

// Create implements rest.Creater. If another Service claimed a chosen address first, it chooses again.
func (s *Services) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	var err error
	for range claimAttempts {
		var out runtime.Object
		out, err = s.Store.Create(ctx, obj.DeepCopyObject(), validate, options)
		if !errors.Is(err, storage.ErrExtraCompare) {
			return out, err
		}
	}
	return nil, apierrors.NewConflict(api.Resource("services"), nameOf(obj), errors.Join(errClaimsLost, err))
}

// Update implements rest.Updater; it chooses again as Create does.
func (s *Services) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	var err error
	for range claimAttempts {
		var out runtime.Object
		var created bool
		out, created, err = s.Store.Update(ctx, name, info, create, update, allowCreate, options)
		if !errors.Is(err, storage.ErrExtraCompare) {
			return out, created, err
		}
	}
	return nil, false, apierrors.NewConflict(api.Resource("services"), name, errors.Join(errClaimsLost, err))
}

func nameOf(obj runtime.Object) string {
	if svc, ok := obj.(*api.Service); ok {
		return svc.Name
	}
	return ""
}

// ShortNames implements rest.ShortNamesProvider.
func (s *Services) ShortNames() []string { return []string{"svc"} }

// Categories implements rest.CategoriesProvider.
func (s *Services) Categories() []string { return []string{"all"} }

// afterDelete deletes the Endpoints of the same name, so that a new Service of this name does not start with the old
// addresses.
func (s *Services) afterDelete(obj runtime.Object, options *metav1.DeleteOptions) {
	svc, ok := obj.(*api.Service)
	if !ok || s.endpoints == nil || (options != nil && dryrun.IsDryRun(options.DryRun)) {
		return
	}
	ctx := request.WithNamespace(request.NewContext(), svc.Namespace)
	// Best effort: the endpoints controller does the same a little later.
	_, _, _ = s.endpoints.Delete(ctx, svc.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
}

// completeRead fills fields that a Service may lack if it was not written through this registry.
func (s *Services) completeRead(obj runtime.Object) {
	switch o := obj.(type) {
	case *api.Service:
		s.complete(o)
	case *api.ServiceList:
		for i := range o.Items {
			s.complete(&o.Items[i])
		}
	}
}

func (s *Services) complete(svc *api.Service) {
	if svc.Spec.Type == api.ServiceTypeExternalName {
		svc.Spec.InternalTrafficPolicy = nil
		return
	}
	if svc.Spec.ClusterIP != "" && len(svc.Spec.ClusterIPs) == 0 {
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
	}
	if len(svc.Spec.IPFamilies) > 0 {
		return
	}
	cluster := s.blocks.primary()
	policy := api.IPFamilyPolicySingleStack
	switch {
	case headless(svc) && len(svc.Spec.Selector) == 0:
		policy = api.IPFamilyPolicyRequireDualStack
		svc.Spec.IPFamilies = []api.IPFamily{cluster, other(cluster)}
	case headless(svc):
		svc.Spec.IPFamilies = []api.IPFamily{cluster}
	default:
		for _, ip := range svc.Spec.ClusterIPs {
			svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, familyOf(ip))
		}
		if len(svc.Spec.IPFamilies) == 2 {
			policy = api.IPFamilyPolicyRequireDualStack
		}
	}
	if len(svc.Spec.IPFamilies) > 0 {
		svc.Spec.IPFamilyPolicy = &policy
	}
}
