// Package policystatus says in the status of ValidatingAdmissionPolicies which of their expressions cannot be right for the
// types they are about (kubernetes: KEP-3488, type checking).
//
// It watches ValidatingAdmissionPolicies and writes their status.observedGeneration and status.typeChecking. The types are
// read from the API's own OpenAPI documents, when a policy is new or changed; nothing is kept between.
//
// Goroutines: the workers of one work loop.
package policystatus

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	apply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/discovery/cached/memory"
	listers "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/balsahq/balsa/leader/workqueue"
)

// manager owns the fields it applies; the name is upstream's.
const manager = "validatingadmissionpolicy-status"

type controller struct {
	env      workqueue.Env
	policies listers.ValidatingAdmissionPolicyLister
	types    func() (resolver.SchemaResolver, meta.RESTMapper)
	loop     *workqueue.Loop[workqueue.Key]
}

// New returns the controller that type-checks policies.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	return newController(env, workers, func() (resolver.SchemaResolver, meta.RESTMapper) {
		discovery := env.Client.Discovery() // asked anew for each policy: its types may have been defined a moment ago
		return &resolver.ClientDiscoveryResolver{Discovery: discovery}, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery))
	})
}

func newController(env workqueue.Env, workers int, types func() (resolver.SchemaResolver, meta.RESTMapper)) (workqueue.Runner, error) {
	policies := env.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &controller{env: env, policies: policies.Lister(), types: types}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, workqueue.Watch(c.loop, policies.Informer(), func(_, now *v1.ValidatingAdmissionPolicy) {
		if now != nil && unchecked(now) {
			c.loop.Add(workqueue.KeyOf(now))
		}
	})
}

// unchecked reports whether the policy is not what was checked last.
func unchecked(p *v1.ValidatingAdmissionPolicy) bool {
	return p.Generation > p.Status.ObservedGeneration
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	policy, err := c.policies.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !unchecked(policy) {
		return nil
	}
	if err != nil {
		return err
	}
	schemas, mapper := c.types()
	heard := &listening{SchemaResolver: schemas}
	checking := apply.TypeChecking()
	for _, w := range (&validating.TypeChecker{SchemaResolver: heard, RestMapper: mapper}).Check(policy) {
		checking.WithExpressionWarnings(apply.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	if heard.err != nil {
		return fmt.Errorf("types of ValidatingAdmissionPolicy %s: %w", policy.Name, heard.err)
	}
	status := apply.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(checking)
	_, err = c.env.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		apply.ValidatingAdmissionPolicy(policy.Name).WithStatus(status), metav1.ApplyOptions{FieldManager: manager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// listening remembers why a type could not be read: the checker passes over it, as over a type that does not exist.
type listening struct {
	resolver.SchemaResolver
	err error
}

// ResolveSchema implements resolver.SchemaResolver.
func (l *listening) ResolveSchema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	s, err := l.SchemaResolver.ResolveSchema(kind)
	if err != nil && !errors.Is(err, resolver.ErrSchemaNotFound) {
		l.err = errors.Join(l.err, err)
	}
	return s, err
}
