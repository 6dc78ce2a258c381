package kinds

import (
	"context"
	"net/http"
	"net/url"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/persistentvolumeclaim"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	registrypod "k8s.io/kubernetes/pkg/registry/core/pod"
	clusterrolepolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	rolepolicy "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
)

// pods adds a pod's address for the proxy subresource.
type pods struct{ Endpoint }

func wrapPods(e Endpoint, _ *Set) rest.Storage { return pods{e} }

// ResourceLocation implements rest.Redirector.
func (p pods) ResourceLocation(ctx context.Context, name string) (*url.URL, http.RoundTripper, error) {
	return registrypod.ResourceLocation(ctx, p.Store, http.DefaultTransport, name)
}

// jobs warns a client that deletes a Job without a propagation policy.
type jobs struct{ Endpoint }

func wrapJobs(e Endpoint, _ *Set) rest.Storage { return jobs{e} }

const jobDeletion = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

func warnJobDeletion(ctx context.Context, options *metav1.DeleteOptions) {
	//nolint:staticcheck // old clients still send orphanDependents
	if options != nil && options.PropagationPolicy == nil && options.OrphanDependents == nil &&
		job.Strategy.DefaultGarbageCollectionPolicy(ctx) == rest.OrphanDependents {
		warning.AddWarning(ctx, "", jobDeletion)
	}
}

// Delete implements rest.GracefulDeleter.
func (j jobs) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	warnJobDeletion(ctx, options)
	return j.Store.Delete(ctx, name, validate, options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (j jobs) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (runtime.Object, error) {
	warnJobDeletion(ctx, options)
	return j.Store.DeleteCollection(ctx, validate, options, list)
}

// claimHook fills the two data source fields of a PersistentVolumeClaim alike when it is read, whenever it was written.
func claimHook(store *genericregistry.Store) {
	store.Decorator = func(obj runtime.Object) {
		switch o := obj.(type) {
		case *api.PersistentVolumeClaim:
			persistentvolumeclaim.NormalizeDataSources(&o.Spec)
		case *api.PersistentVolumeClaimList:
			for i := range o.Items {
				persistentvolumeclaim.NormalizeDataSources(&o.Items[i].Spec)
			}
		}
	}
}

// The four RBAC kinds refuse to grant rights that the client does not have.

func wrapRoles(e Endpoint, s *Set) rest.Storage {
	return rolepolicy.NewStorage(e, s.Deps.Authorizer, s.Deps.Rules)
}

func wrapRoleBindings(e Endpoint, s *Set) rest.Storage {
	return rolebindingpolicy.NewStorage(e, s.Deps.Authorizer, s.Deps.Rules)
}

func wrapClusterRoles(e Endpoint, s *Set) rest.Storage {
	return clusterrolepolicy.NewStorage(e, s.Deps.Authorizer, s.Deps.Rules)
}

func wrapClusterRoleBindings(e Endpoint, s *Set) rest.Storage {
	return clusterrolebindingpolicy.NewStorage(e, s.Deps.Authorizer, s.Deps.Rules)
}
