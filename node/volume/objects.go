package volume

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
)

type objectKind uint8

const (
	configMapKind objectKind = iota + 1
	secretKind
)

func (k objectKind) title() string {
	if k == secretKind {
		return "Secret"
	}
	return "ConfigMap"
}

// objectKey names a ConfigMap or a Secret.
type objectKey struct {
	kind            objectKind
	namespace, name string
}

// notFound is the error for an object that is absent, worded as users know it: configmap "x" not found.
func (k objectKey) notFound() error {
	resource := "configmap"
	if k.kind == secretKind {
		resource = "secret"
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, k.name)
}

// object is what a volume or a variable needs of a ConfigMap or Secret. It is read-only.
type object struct {
	text      map[string][]byte // ConfigMap.data, Secret.data
	binary    map[string][]byte // ConfigMap.binaryData
	immutable bool
}

func (o *object) key(k string) ([]byte, bool) {
	if v, ok := o.text[k]; ok {
		return v, true
	}
	v, ok := o.binary[k]
	return v, ok
}

func objectOf(obj any) (objectKey, *object) {
	switch o := obj.(type) {
	case *v1.ConfigMap:
		text := make(map[string][]byte, len(o.Data))
		for k, v := range o.Data {
			text[k] = []byte(v)
		}
		key := objectKey{kind: configMapKind, namespace: o.Namespace, name: o.Name}
		return key, &object{text: text, binary: o.BinaryData, immutable: isTrue(o.Immutable)}
	case *v1.Secret:
		key := objectKey{kind: secretKind, namespace: o.Namespace, name: o.Name}
		return key, &object{text: o.Data, immutable: isTrue(o.Immutable)}
	}
	return objectKey{}, nil
}

// objects reads ConfigMaps and Secrets, and watches each one that some pod of this node uses: one watch an object,
// counted by its users, none for an immutable one.
type objects struct {
	client  kubernetes.Interface
	logger  *slog.Logger
	changed func(key objectKey, exists bool) // called without locks

	mu      sync.Mutex
	watched map[objectKey]*watched
	ctx     context.Context // of Run; nil while not running
	wg      sync.WaitGroup
}

// watched is one object under watch. It implements cache.ReflectorStore; its fields are guarded by objects.mu.
type watched struct {
	owner  *objects
	key    objectKey
	users  int
	cancel context.CancelFunc // nil while no watch runs
	synced bool
	object *object // nil: absent
}

func newObjects(client kubernetes.Interface, logger *slog.Logger, changed func(objectKey, bool)) *objects {
	return &objects{client: client, logger: logger, changed: changed, watched: map[objectKey]*watched{}}
}

// get asks the API server for the object as it is now.
func (s *objects) get(ctx context.Context, key objectKey) (*object, error) {
	var obj any
	var err error
	if key.kind == secretKind {
		obj, err = s.client.CoreV1().Secrets(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
	} else {
		obj, err = s.client.CoreV1().ConfigMaps(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, key.notFound()
	}
	if err != nil {
		return nil, err
	}
	_, o := objectOf(obj)
	return o, nil
}

// latest returns the object as its watch knows it, and asks the API server when there is no watch yet.
func (s *objects) latest(ctx context.Context, key objectKey) (*object, error) {
	s.mu.Lock()
	w := s.watched[key]
	if w == nil || !w.synced {
		s.mu.Unlock()
		return s.get(ctx, key)
	}
	o := w.object
	s.mu.Unlock()
	if o == nil {
		return nil, key.notFound()
	}
	return o, nil
}

// acquire begins to watch the object, or counts one more user of its watch.
func (s *objects) acquire(key objectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[key]
	if w == nil {
		w = &watched{owner: s, key: key}
		s.watched[key] = w
	}
	w.users++
	s.watchLocked(w)
}

// release takes one user away; the watch ends with the last.
func (s *objects) release(key objectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[key]
	if w == nil {
		return
	}
	if w.users--; w.users > 0 {
		return
	}
	delete(s.watched, key)
	if w.cancel != nil {
		w.cancel()
	}
}

// run lets watches run until ctx ends and joins them.
func (s *objects) run(ctx context.Context) {
	s.mu.Lock()
	s.ctx = ctx
	for _, w := range s.watched {
		s.watchLocked(w)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	for _, w := range s.watched {
		w.cancel, w.synced = nil, false
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *objects) watchLocked(w *watched) {
	if s.ctx == nil || w.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	w.cancel = cancel
	lw, kind := s.listWatch(w.key)
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.client), kind, w, cache.ReflectorOptions{Name: "volumes"})
	s.wg.Go(func() {
		defer cancel()
		fault.KeepDo(ctx, "node/volumes", r.RunWithContext)
	})
}

func (s *objects) listWatch(key objectKey) (*cache.ListWatch, runtime.Object) {
	only := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, key.name).String()
	}
	if key.kind == secretKind {
		api := s.client.CoreV1().Secrets(key.namespace)
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				only(&o)
				return api.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				only(&o)
				return api.Watch(ctx, o)
			},
		}, &v1.Secret{}
	}
	api := s.client.CoreV1().ConfigMaps(key.namespace)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			only(&o)
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			only(&o)
			return api.Watch(ctx, o)
		},
	}, &v1.ConfigMap{}
}

// Add is part of cache.ReflectorStore.
func (w *watched) Add(obj any) error { return w.put(obj) }

// Update is part of cache.ReflectorStore.
func (w *watched) Update(obj any) error { return w.put(obj) }

// Delete is part of cache.ReflectorStore.
func (w *watched) Delete(obj any) error {
	if key, _ := objectOf(obj); key == w.key {
		w.store(nil)
	}
	return nil
}

// Replace is part of cache.ReflectorStore.
func (w *watched) Replace(list []any, _ string) error {
	for _, obj := range list {
		if key, o := objectOf(obj); o != nil && key == w.key {
			w.store(o)
			return nil
		}
	}
	w.store(nil)
	return nil
}

// Resync is part of cache.ReflectorStore.
func (w *watched) Resync() error { return nil }

func (w *watched) put(obj any) error {
	key, o := objectOf(obj)
	if o == nil {
		return fmt.Errorf("volume: watch of %s delivered %T", w.key.name, obj)
	}
	if key == w.key {
		w.store(o)
	}
	return nil
}

func (w *watched) store(o *object) {
	s := w.owner
	s.mu.Lock()
	w.object, w.synced = o, true
	if o != nil && o.immutable && w.cancel != nil {
		w.cancel() // stays set: it needs no watch again in this life of the agent
	}
	s.mu.Unlock()
	s.changed(w.key, o != nil)
}
