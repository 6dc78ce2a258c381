package initializers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// DefaultPatience is how long a creation waits for initializers; Kubernetes v1.9's figure.
const DefaultPatience = 30 * time.Second

// reply is the part of a request's time that is kept for the answer to its client.
const reply = 200 * time.Millisecond

// Config configures Hide.
type Config struct {
	// Patience is how long a creation waits until the object is initialized. Default DefaultPatience.
	Patience time.Duration
	// Remove deletes the object that a request has written an initializer's failure into.
	Remove func(ctx context.Context, o metav1.Object) error
}

// Hide wraps the storages of registries. Lists and watches leave out objects that are not initialized, unless Filter
// has marked their context. A creation waits until the object is initialized. An object whose initializer has failed is
// deleted. As in Kubernetes v1.9, a read by name returns every object.
func Hide(of generic.RESTOptionsGetter, cfg Config) generic.RESTOptionsGetter {
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	return getter{of, cfg}
}

type getter struct {
	of  generic.RESTOptionsGetter
	cfg Config
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g getter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.of.GetRESTOptions(resource, example)
	if err != nil || Exempt(resource) {
		return o, err
	}
	decorate := o.Decorator
	o.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := decorate(config, prefix, keyFunc, newFunc, newListFunc, attrs, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		return &hidingStorage{Interface: s, resource: resource, cfg: g.cfg}, destroy, nil
	}
	return o, nil
}

// hidingStorage is a storage that shows only initialized objects.
type hidingStorage struct {
	storage.Interface
	resource schema.GroupResource
	cfg      Config
}

// Unwrap returns the storage that shows all objects.
func (h *hidingStorage) Unwrap() storage.Interface { return h.Interface }

// GetList implements storage.Interface.
func (h *hidingStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if !included(ctx) {
		opts.Predicate = initialized(opts.Predicate)
	}
	return h.Interface.GetList(ctx, key, opts, list)
}

// Watch implements storage.Interface. An object is ADDED when it is initialized.
func (h *hidingStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if !included(ctx) {
		opts.Predicate = initialized(opts.Predicate)
	}
	return h.Interface.Watch(ctx, key, opts)
}

var errHidden = errors.New("initializers: the object is not initialized")

// initialized restricts a predicate to initialized objects. An object whose attributes cannot be read is not selected.
func initialized(p storage.SelectionPredicate) storage.SelectionPredicate {
	attrs := p.GetAttrs
	p.GetAttrs = func(o runtime.Object) (labels.Set, fields.Set, error) {
		if m, err := meta.Accessor(o); err == nil && Uninitialized(m) {
			return nil, nil, errHidden
		}
		return attrs(o)
	}
	p.Field = neverEmptySelector{p.Field}
	return p
}

// neverEmptySelector is a field selector that is never empty, so that every object is checked.
type neverEmptySelector struct{ fields.Selector }

// Empty implements fields.Selector.
func (neverEmptySelector) Empty() bool { return false }

// DeepCopySelector implements fields.Selector.
func (l neverEmptySelector) DeepCopySelector() fields.Selector {
	return neverEmptySelector{l.Selector.DeepCopySelector()}
}

// Create implements storage.Interface.
func (h *hidingStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := h.Interface.Create(ctx, key, obj, out, ttl); err != nil || out == nil {
		return err
	}
	return h.await(ctx, key, out)
}

// GuaranteedUpdate implements storage.Interface. If it creates the object, it waits as Create does.
func (h *hidingStorage) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, try storage.UpdateFunc, suggestion runtime.Object,
) error {
	created, failed := false, false
	watched := func(in runtime.Object, at storage.ResponseMeta) (runtime.Object, *uint64, error) {
		out, ttl, err := try(in, at)
		created, failed = at.ResourceVersion == 0, false
		if err != nil {
			return out, ttl, err
		}
		if m, wrong := meta.Accessor(out); wrong == nil {
			if s, wrong := Of(m); wrong == nil && s != nil && s.Result != nil {
				failed = true
				m.SetFinalizers(nil) // no client has seen the object, so no finalizer has work to do
			}
		}
		return out, ttl, nil
	}
	err := h.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, watched, suggestion)
	switch {
	case err != nil:
		return err
	case failed:
		m, err := meta.Accessor(destination)
		if err != nil {
			return err
		}
		return h.cfg.Remove(ctx, m)
	case created:
		return h.await(ctx, key, destination)
	}
	return nil
}

// await returns when the object of key, which was just created, is initialized; out is its newest state.
func (h *hidingStorage) await(ctx context.Context, key string, out runtime.Object) error {
	m, err := meta.Accessor(out)
	if err != nil || included(ctx) || !Uninitialized(m) {
		return nil
	}
	patience := h.cfg.Patience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, max(time.Until(end)-reply, 0))
	}
	limited, cancel := context.WithTimeout(include(ctx), patience)
	defer cancel()
	w, err := h.Interface.Watch(limited, key, storage.ListOptions{ResourceVersion: m.GetResourceVersion(), Predicate: storage.Everything})
	if err != nil {
		return err
	}
	defer w.Stop()
	last, _ := Of(m)
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return h.timeoutError(m, last)
			}
			state, done, err := h.see(e, m, out)
			if done || err != nil {
				return err
			}
			last = state
		case <-limited.Done():
			return h.timeoutError(m, last)
		}
	}
}

// see handles an event of an object for which a creation waits. done: out is the object, or err the reason.
func (h *hidingStorage) see(e watch.Event, m metav1.Object, out runtime.Object) (state *State, done bool, err error) {
	if e.Type == watch.Error {
		return nil, false, apierrors.FromObject(e.Object)
	}
	obj := e.Object
	if shared, ok := obj.(runtime.CacheableObject); ok {
		obj = shared.GetObject()
	}
	now, err := meta.Accessor(obj)
	if err != nil {
		return nil, false, err
	}
	state, err = Of(now)
	switch {
	case err == nil && state != nil && state.Result != nil:
		return nil, false, state.failure()
	case e.Type == watch.Deleted || now.GetUID() != m.GetUID():
		return nil, false, apierrors.NewConflict(h.resource, m.GetName(), errors.New("it was deleted while it waited for its initializers"))
	case err == nil && !state.Empty():
		return state, false, nil
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj).Elem())
	return nil, true, nil
}

// timeoutError is the answer if the initializers take too long. Its details name the object, which exists.
func (h *hidingStorage) timeoutError(m metav1.Object, s *State) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf(
		"%s %q is created and still being initialized by %s; it is seen when they have finished. Read it by name, or lists with ?%s=true; deleting it ends the wait",
		h.resource, m.GetName(), s.Names(), parameter), 0)
	err.ErrStatus.Details.Group, err.ErrStatus.Details.Kind = h.resource.Group, h.resource.Resource
	err.ErrStatus.Details.Name, err.ErrStatus.Details.UID = m.GetName(), m.GetUID()
	return err
}
