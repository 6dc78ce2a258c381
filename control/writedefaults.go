package control

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"

	"github.com/balsahq/balsa/control/aggregation"
	"github.com/balsahq/balsa/control/auth/bootstrap"
	"github.com/balsahq/balsa/control/limits"
	"github.com/balsahq/balsa/fault"
)

// maxDefaultWrites bounds the writes of one seeding; the store groups them into few log entries.
const maxDefaultWrites = 128

// defaultObject is one object that must exist, in its external version.
type defaultObject struct {
	group, resource string
	object          runtime.Object
}

// defaultObjects are the objects every cluster has from its first moment.
func (s *Server) defaultObjects() []defaultObject {
	const rbac = "rbac.authorization.k8s.io"
	var out []defaultObject
	add := func(group, resource string, o runtime.Object) { out = append(out, defaultObject{group, resource, o}) }
	for _, name := range bootstrap.SystemNamespaces {
		add("", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	add("networking.k8s.io", "servicecidrs", s.serviceCIDR())
	add("", "services", s.service())
	if s.cfg.ClusterDNS.IsValid() {
		add("", "services", s.dnsService())
	}
	add("", "endpoints", s.endpoints())
	add("discovery.k8s.io", "endpointslices", s.slice())
	if s.cfg.IngressClass != "" {
		add("networking.k8s.io", "ingressclasses", s.ingressClass())
	}
	for _, pc := range scheduling.SystemPriorityClasses() {
		add("scheduling.k8s.io", "priorityclasses", pc)
	}
	for _, a := range aggregation.Builtin(s.builtinGroupVersions()) {
		add(apiregistrationv1.GroupName, "apiservices", a)
	}
	levels, schemas := limits.Defaults()
	for _, l := range levels {
		add(flowcontrolv1.GroupName, "prioritylevelconfigurations", l)
	}
	for _, f := range schemas {
		add(flowcontrolv1.GroupName, "flowschemas", f)
	}
	policy := bootstrap.Default()
	for i := range policy.ClusterRoles {
		add(rbac, "clusterroles", &policy.ClusterRoles[i])
	}
	for i := range policy.ClusterRoleBindings {
		add(rbac, "clusterrolebindings", &policy.ClusterRoleBindings[i])
	}
	for i := range policy.Roles {
		add(rbac, "roles", &policy.Roles[i])
	}
	for i := range policy.RoleBindings {
		add(rbac, "rolebindings", &policy.RoleBindings[i])
	}
	return out
}

// writeDefaults writes what is missing straight into the registries: defaulted and validated like every object, without the
// admission and authorization that these very objects are there for.
func (s *Server) writeDefaults(ctx context.Context, all []defaultObject) error {
	view := s.cfg.Store.View()
	g, ctx := errgroup.WithContext(serverContext(ctx))
	g.SetLimit(maxDefaultWrites)
	for _, o := range all {
		store := s.set.Store(o.group, o.resource)
		accessor, err := meta.Accessor(o.object)
		if err != nil {
			return err
		}
		ctx := o.context(ctx, accessor)
		key, err := store.KeyFunc(ctx, accessor.GetName())
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.resource, accessor.GetName(), err)
		}
		if view.Get(keyPrefix+key) != nil {
			continue
		}
		g.Go(fault.ContainedErr("control", func() error {
			internal, err := internalVersion(o.object)
			if err == nil {
				_, err = store.Create(ctx, internal, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("%s %s: %w", o.resource, accessor.GetName(), err)
			}
			return nil
		}))
	}
	return g.Wait()
}

// context is what a request that creates the object would carry.
func (o defaultObject) context(ctx context.Context, m metav1.Object) context.Context {
	ctx = apirequest.WithNamespace(ctx, m.GetNamespace())
	return apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: o.group, APIVersion: "v1", Resource: o.resource,
		Namespace: m.GetNamespace(), Name: m.GetName(),
	})
}

// internalVersion is what registries work on.
func internalVersion(o runtime.Object) (runtime.Object, error) {
	legacyscheme.Scheme.Default(o)
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	return legacyscheme.Scheme.ConvertToVersion(o, schema.GroupVersion{Group: kinds[0].Group, Version: runtime.APIVersionInternal})
}
