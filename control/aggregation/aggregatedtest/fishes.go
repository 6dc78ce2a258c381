package aggregatedtest

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// fishes is the storage, in memory. The annotation "by" of each object names the user that created it.
type fishes struct {
	rest.TableConvertor

	mu       sync.Mutex
	revision int
	all      map[types.NamespacedName]*corev1.ConfigMap
	events   *watch.Broadcaster
}

var resource = schema.GroupResource{Group: GroupVersion.Group, Resource: "fishes"}

func newFishes() *fishes {
	return &fishes{
		TableConvertor: rest.NewDefaultTableConvertor(resource), all: map[types.NamespacedName]*corev1.ConfigMap{},
		events: watch.NewBroadcaster(100, watch.WaitIfChannelFull),
	}
}

var (
	_ rest.Lister          = (*fishes)(nil)
	_ rest.Getter          = (*fishes)(nil)
	_ rest.Creater         = (*fishes)(nil)
	_ rest.GracefulDeleter = (*fishes)(nil)
	_ rest.Watcher         = (*fishes)(nil)
)

// New implements rest.Storage.
func (f *fishes) New() runtime.Object { return &corev1.ConfigMap{} }

// NewList implements rest.Lister.
func (f *fishes) NewList() runtime.Object { return &corev1.ConfigMapList{} }

// Destroy implements rest.Storage.
func (f *fishes) Destroy() { f.events.Shutdown() }

// NamespaceScoped implements rest.Scoper.
func (f *fishes) NamespaceScoped() bool { return true }

// GetSingularName implements rest.SingularNameProvider.
func (f *fishes) GetSingularName() string { return "fish" }

// Kind implements rest.KindProvider.
func (f *fishes) Kind() string { return "Fish" }

func key(ctx context.Context, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: request.NamespaceValue(ctx), Name: name}
}

// Get implements rest.Getter.
func (f *fishes) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.all[key(ctx, name)]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

// List implements rest.Lister.
func (f *fishes) List(ctx context.Context, _ *metainternalversion.ListOptions) (runtime.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.revision)}}
	for k, o := range f.all {
		if ns := request.NamespaceValue(ctx); ns == "" || ns == k.Namespace {
			out.Items = append(out.Items, *o.DeepCopy())
		}
	}
	return out, nil
}

// Create implements rest.Creater.
func (f *fishes) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	o, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return nil, fmt.Errorf("%T is not a fish", obj)
	}
	if err := validate(ctx, obj); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[key(ctx, o.Name)] != nil {
		return nil, apierrors.NewAlreadyExists(resource, o.Name)
	}
	f.revision++
	o = o.DeepCopy()
	o.Namespace, o.UID, o.CreationTimestamp, o.ResourceVersion = request.NamespaceValue(ctx), uuid.NewUUID(), metav1.Now(), strconv.Itoa(f.revision)
	if u, ok := request.UserFrom(ctx); ok {
		o.Annotations = map[string]string{"by": u.GetName()}
	}
	f.all[key(ctx, o.Name)] = o
	return o.DeepCopy(), f.events.Action(watch.Added, o.DeepCopy())
}

// Delete implements rest.GracefulDeleter.
func (f *fishes) Delete(ctx context.Context, name string, _ rest.ValidateObjectFunc, _ *metav1.DeleteOptions) (runtime.Object, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.all[key(ctx, name)]
	if o == nil {
		return nil, false, apierrors.NewNotFound(resource, name)
	}
	delete(f.all, key(ctx, name))
	f.revision++
	return o, true, f.events.Action(watch.Deleted, o.DeepCopy())
}

// Watch implements rest.Watcher.
func (f *fishes) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var now []watch.Event
	for _, o := range f.all {
		now = append(now, watch.Event{Type: watch.Added, Object: o.DeepCopy()})
	}
	return f.events.WatchWithPrefix(now)
}
