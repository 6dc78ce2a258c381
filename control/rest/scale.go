package rest

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	api "k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scalable describes the replicas of one kind. replicas points into the object; selector is the text by which an
// autoscaler lists the pods.
type scalable struct {
	gv       schema.GroupVersion
	resource string
	replicas func(runtime.Object) *int32
	selector func(runtime.Object) (string, error)
	current  func(runtime.Object) int32
}

func selectorText(s *metav1.LabelSelector) (string, error) {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", err
	}
	return sel.String(), nil
}

var scalables = []scalable{{
	gv: appsV1, resource: "deployments",
	replicas: func(o runtime.Object) *int32 { return &o.(*apps.Deployment).Spec.Replicas },
	selector: func(o runtime.Object) (string, error) { return selectorText(o.(*apps.Deployment).Spec.Selector) },
	current:  func(o runtime.Object) int32 { return o.(*apps.Deployment).Status.Replicas },
}, {
	gv: appsV1, resource: "replicasets",
	replicas: func(o runtime.Object) *int32 { return &o.(*apps.ReplicaSet).Spec.Replicas },
	selector: func(o runtime.Object) (string, error) { return selectorText(o.(*apps.ReplicaSet).Spec.Selector) },
	current:  func(o runtime.Object) int32 { return o.(*apps.ReplicaSet).Status.Replicas },
}, {
	gv: appsV1, resource: "statefulsets",
	replicas: func(o runtime.Object) *int32 { return &o.(*apps.StatefulSet).Spec.Replicas },
	selector: func(o runtime.Object) (string, error) { return selectorText(o.(*apps.StatefulSet).Spec.Selector) },
	current:  func(o runtime.Object) int32 { return o.(*apps.StatefulSet).Status.Replicas },
}, {
	gv: coreV1, resource: "replicationcontrollers",
	replicas: func(o runtime.Object) *int32 {
		spec := &o.(*api.ReplicationController).Spec
		if spec.Replicas == nil {
			spec.Replicas = new(int32)
		}
		return spec.Replicas
	},
	selector: func(o runtime.Object) (string, error) {
		return labels.Set(o.(*api.ReplicationController).Spec.Selector).String(), nil
	},
	current: func(o runtime.Object) int32 { return o.(*api.ReplicationController).Status.Replicas },
}}

func installScales(t Table) {
	for _, s := range scalables {
		if store := t.Store(s.gv.Group, s.resource); store != nil {
			t.Add(s.gv, s.resource+"/scale", &Scale{scalable: s, store: store})
		}
	}
}

// Scale serves a kind's scale subresource.
type Scale struct {
	scalable
	store *genericregistry.Store
}

var (
	_ rest.Patcher                  = (*Scale)(nil)
	_ rest.GroupVersionKindProvider = (*Scale)(nil)
)

// New implements rest.Storage.
func (s *Scale) New() runtime.Object { return &autoscaling.Scale{} }

// Destroy implements rest.Storage.
func (s *Scale) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (s *Scale) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// ConvertToTable prints a Scale with the columns of its kind.
func (s *Scale) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, options)
}

// Get implements rest.Getter.
func (s *Scale) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return s.show(obj)
}

func (s *Scale) show(obj runtime.Object) (*autoscaling.Scale, error) {
	m, ok := obj.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T has no metadata", obj))
	}
	sel, err := s.selector(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o := m.GetObjectMeta()
	return &autoscaling.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp()},
		Spec:   autoscaling.ScaleSpec{Replicas: *s.replicas(obj)},
		Status: autoscaling.ScaleStatus{Replicas: s.current(obj), Selector: sel},
	}, nil
}

// Update implements rest.Updater.
func (s *Scale) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	obj, _, err := s.store.Update(ctx, name, &scaling{Scale: s, name: name, UpdatedObjectInfo: info},
		func(ctx context.Context, obj runtime.Object) error {
			scale, err := s.show(obj)
			if err != nil {
				return err
			}
			return create(ctx, scale)
		},
		func(ctx context.Context, obj, old runtime.Object) error {
			scale, err := s.show(obj)
			if err != nil {
				return err
			}
			before, err := s.show(old)
			if err != nil {
				return err
			}
			return update(ctx, scale, before)
		}, false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := s.show(obj)
	return scale, false, err
}

// scaling converts the object to its Scale, applies the request to it, and writes the new number back. Managed fields
// follow: the manager of the Scale's spec.replicas becomes the manager of the object's.
type scaling struct {
	*Scale
	name string
	rest.UpdatedObjectInfo
}

// UpdatedObject implements rest.UpdatedObjectInfo.
func (u *scaling) UpdatedObject(ctx context.Context, oldObj runtime.Object) (runtime.Object, error) {
	obj := oldObj.DeepCopyObject()
	m, ok := obj.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T has no metadata", obj))
	}
	o, gr := m.GetObjectMeta(), schema.GroupResource{Group: u.gv.Group, Resource: u.resource + "/scale"}
	if o.GetResourceVersion() == "" {
		return nil, apierrors.NewNotFound(gr, u.name)
	}
	gv := u.gv
	if info, ok := request.RequestInfoFrom(ctx); ok && info.APIGroup == u.gv.Group && info.APIVersion != "" {
		gv.Version = info.APIVersion
	}
	managed := managedfields.NewScaleHandler(o.GetManagedFields(), gv, managedfields.ResourcePathMappings{
		gv.String(): fieldpath.MakePathOrDie("spec", "replicas"),
	})
	old, err := u.show(obj)
	if err != nil {
		return nil, err
	}
	if old.ManagedFields, err = managed.ToSubresource(); err != nil {
		return nil, err
	}
	changed, err := u.UpdatedObjectInfo.UpdatedObject(ctx, old)
	if err != nil {
		return nil, err
	}
	scale, ok := changed.(*autoscaling.Scale)
	if !ok || scale == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", changed))
	}
	if errs := validation.ValidateScale(scale); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscaling.Kind("Scale"), o.GetName(), errs)
	}
	if scale.UID != "" && scale.UID != o.GetUID() {
		return nil, apierrors.NewConflict(gr, o.GetName(),
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, o.GetUID())) //nolint:staticcheck // upstream's text
	}
	*u.replicas(obj) = scale.Spec.Replicas
	o.SetResourceVersion(scale.ResourceVersion)
	entries, err := managed.ToParent(scale.ManagedFields)
	if err != nil {
		return nil, err
	}
	o.SetManagedFields(entries)
	return obj, nil
}
