package kinds

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	api "k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// namespaces is the endpoint of namespaces. DELETE first makes the namespace Terminating. The namespace is removed once
// the last of spec.finalizers has been removed through the finalize view. Namespaces have no DELETE of the collection,
// so the endpoint lists its methods instead of embedding those of the store.
type namespaces struct{ e Endpoint }

func wrapNamespaces(e Endpoint, _ *Set) rest.Storage { return namespaces{e} }

var (
	_ rest.Lister          = namespaces{}
	_ rest.CreaterUpdater  = namespaces{}
	_ rest.Watcher         = namespaces{}
	_ rest.GracefulDeleter = namespaces{}
	_ rest.Scoper          = namespaces{}
)

func (n namespaces) New() runtime.Object                    { return n.e.New() }
func (n namespaces) NewList() runtime.Object                { return n.e.NewList() }
func (n namespaces) Destroy()                               { n.e.Destroy() }
func (n namespaces) NamespaceScoped() bool                  { return false }
func (n namespaces) GetSingularName() string                { return n.e.GetSingularName() }
func (n namespaces) ShortNames() []string                   { return n.e.Short }
func (n namespaces) StorageVersion() runtime.GroupVersioner { return n.e.StorageVersion() }

func (n namespaces) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return n.e.GetResetFields()
}

func (n namespaces) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return n.e.ConvertToTable(ctx, obj, options)
}

func (n namespaces) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return n.e.Get(ctx, name, options)
}

func (n namespaces) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return n.e.List(ctx, options)
}

func (n namespaces) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return n.e.Watch(ctx, options)
}

func (n namespaces) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return n.e.Create(ctx, obj, validate, options)
}

func (n namespaces) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return n.e.Update(ctx, name, info, create, update, allowCreate, options)
}

// Delete implements rest.GracefulDeleter. The first call starts the termination; a later one removes a namespace
// without finalizers.
func (n namespaces) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := n.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*api.Namespace)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if err := bindPreconditions(options, ns); err != nil {
		return nil, false, err
	}
	if ns.DeletionTimestamp.IsZero() {
		out, err := n.terminate(ctx, name, validate, options)
		return out, false, err
	}
	if len(ns.Spec.Finalizers) != 0 {
		return ns, false, nil
	}
	return n.e.Delete(ctx, name, validate, options)
}

// bindPreconditions checks the caller's preconditions and pins the deletion to the namespace that was read.
func bindPreconditions(options *metav1.DeleteOptions, ns *api.Namespace) error {
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	p := options.Preconditions
	conflict := func(field, want, have string) error {
		return apierrors.NewConflict(api.Resource("namespaces"), ns.Name,
			fmt.Errorf("Precondition failed: %s in precondition: %v, %s in object meta: %v", field, want, field, have))
	}
	if p.UID == nil {
		p.UID = &ns.UID
	} else if *p.UID != ns.UID {
		return conflict("UID", string(*p.UID), string(ns.UID))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != ns.ResourceVersion {
		return conflict("ResourceVersion", *p.ResourceVersion, ns.ResourceVersion)
	}
	return nil
}

// terminate sets the deletion timestamp, the phase, and the finalizers for the caller's propagation policy.
func (n namespaces) terminate(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := n.e.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	pre := storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion}
	out := n.e.NewFunc()
	err = n.e.Storage.GuaranteedUpdate(ctx, key, out, false, &pre,
		storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			ns, ok := existing.(*api.Namespace)
			if !ok {
				return nil, fmt.Errorf("expected *api.Namespace, got %T", existing)
			}
			if err := validate(ctx, ns); err != nil {
				return nil, err
			}
			markTerminating(ns, options, metav1.Now())
			return ns, nil
		}), dryrun.IsDryRun(options.DryRun), nil)
	if err == nil {
		return out, nil
	}
	err = storageerr.InterpretGetError(err, api.Resource("namespaces"), name)
	err = storageerr.InterpretUpdateError(err, api.Resource("namespaces"), name)
	var known *apierrors.StatusError
	if !errors.As(err, &known) {
		err = apierrors.NewInternalError(err)
	}
	return nil, err
}

// markTerminating changes ns as a first DELETE does.
func markTerminating(ns *api.Namespace, options *metav1.DeleteOptions, now metav1.Time) {
	if ns.DeletionTimestamp.IsZero() {
		ns.DeletionTimestamp = &now
	}
	ns.Status.Phase = api.NamespaceTerminating
	orphan, cascade := propagation(options)
	for finalizer, want := range map[string]*bool{
		metav1.FinalizerOrphanDependents: orphan,
		metav1.FinalizerDeleteDependents: cascade,
	} {
		if want != nil {
			ns.Finalizers = withFinalizer(ns.Finalizers, finalizer, *want)
		}
	}
}

// propagation returns whether the orphan and the foreground finalizer have to be there; nil leaves one as it is.
func propagation(options *metav1.DeleteOptions) (orphan, cascade *bool) {
	//nolint:staticcheck // old clients still send orphanDependents
	if o := options.OrphanDependents; o != nil {
		not := !*o
		return o, &not
	}
	if p := options.PropagationPolicy; p != nil {
		o, c := *p == metav1.DeletePropagationOrphan, *p == metav1.DeletePropagationForeground
		return &o, &c
	}
	return nil, nil
}

func withFinalizer(list []string, name string, want bool) []string {
	var out []string
	for _, f := range list {
		if f != name {
			out = append(out, f)
		}
	}
	if want {
		out = append(out, name)
	}
	return out
}

// namespaceHook makes an update remove a namespace only if its spec.finalizers are empty too.
func namespaceHook(store *genericregistry.Store) {
	store.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, existing runtime.Object) bool {
		ns, ok := obj.(*api.Namespace)
		return ok && len(ns.Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
	}
}
