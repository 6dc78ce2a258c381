package rest

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// Binding serves pods/binding: it gives a pod its node, once.
type Binding struct{ pods *genericregistry.Store }

var (
	_ rest.NamedCreater                   = (*Binding)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*Binding)(nil)
)

// New implements rest.Storage.
func (b *Binding) New() runtime.Object { return &api.Binding{} }

// Destroy implements rest.Storage.
func (b *Binding) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (b *Binding) NamespaceScoped() bool { return true }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps UID and resourceVersion of the Binding, which are
// preconditions on the pod.
func (b *Binding) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create binds the pod. It answers 409 if the pod is bound, gated or being deleted.
func (b *Binding) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*api.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	if name != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validation.ValidatePodBinding(binding); len(errs) != 0 {
		return nil, apierrors.NewInvalid(api.Kind("Binding"), binding.Name, errs)
	}
	if validate != nil {
		if err := validate(ctx, binding.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := b.bind(ctx, binding, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (b *Binding) bind(ctx context.Context, binding *api.Binding, dryRun bool) error {
	key, err := b.pods.KeyFunc(ctx, binding.Name)
	if err != nil {
		return err
	}
	var pre *storage.Preconditions
	if binding.UID != "" || binding.ResourceVersion != "" {
		pre = &storage.Preconditions{}
		if binding.UID != "" {
			pre.UID = &binding.UID
		}
		if binding.ResourceVersion != "" {
			pre.ResourceVersion = &binding.ResourceVersion
		}
	}
	err = b.pods.Storage.GuaranteedUpdate(ctx, key, &api.Pod{}, false, pre, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		pod, ok := obj.(*api.Pod)
		if !ok {
			return nil, fmt.Errorf("unexpected object: %#v", obj)
		}
		return pod, assign(pod, binding)
	}), dryRun, nil)
	if err == nil {
		return nil
	}
	err = storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, api.Resource("pods"), binding.Name), api.Resource("pods"), binding.Name)
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewConflict(api.Resource("pods/binding"), binding.Name, err)
}

// assign sets the pod's node, or returns why it may not.
func assign(pod *api.Pod, b *api.Binding) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) != 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	pod.Annotations = mergedMaps(pod.Annotations, b.Annotations)
	pod.Labels = mergedMaps(pod.Labels, b.Labels)
	podutil.UpdatePodCondition(&pod.Status, &api.PodCondition{Type: api.PodScheduled, Status: api.ConditionTrue})
	return nil
}

func mergedMaps(into, from map[string]string) map[string]string {
	if len(from) == 0 {
		return into
	}
	if into == nil {
		into = make(map[string]string, len(from))
	}
	maps.Copy(into, from)
	return into
}

// LegacyBinding serves POST …/bindings, the former path of pods/binding.
type LegacyBinding struct{ binding *Binding }

var _ rest.Creater = (*LegacyBinding)(nil)

// New implements rest.Storage.
func (l *LegacyBinding) New() runtime.Object { return l.binding.New() }

// Destroy implements rest.Storage.
func (l *LegacyBinding) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (l *LegacyBinding) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (l *LegacyBinding) GetSingularName() string { return "binding" }

// Create binds the pod the Binding names.
func (l *LegacyBinding) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*api.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	return l.binding.Create(ctx, binding.Name, obj, validate, options)
}
