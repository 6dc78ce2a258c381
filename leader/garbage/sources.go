package garbage

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
)

// patience is how long a kind that does not answer may hold back the collector.
const patience = 30 * time.Second

// source feeds the graph with one resource. It is the reflector's store: the graph keeps what there is to keep.
type source struct {
	resource
	graph  *graph
	look   func(...types.UID)
	notify func() // a kind may have come or gone; nil for most
	filled chan struct{}
	once   sync.Once
	since  time.Time
	cancel context.CancelFunc
}

func (s *source) isFilled() bool {
	select {
	case <-s.filled:
		return true
	default:
		return false
	}
}

func (s *source) take(o any) {
	if obj, ok := o.(metav1.Object); ok {
		s.look(s.graph.observe(s.resource, obj)...)
		s.changed()
	}
}

func (s *source) changed() {
	if s.notify != nil {
		s.notify()
	}
}

// Add takes in a new object.
func (s *source) Add(o any) error { s.take(o); return nil }

// Update takes in a new version of an object.
func (s *source) Update(o any) error { s.take(o); return nil }

// Delete takes out an object.
func (s *source) Delete(o any) error {
	if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = tomb.Obj
	}
	if obj, ok := o.(metav1.Object); ok {
		s.look(s.graph.remove(obj.GetUID())...)
		s.changed()
	}
	return nil
}

// Replace takes in the whole list.
func (s *source) Replace(list []any, _ string) error {
	objs := make([]metav1.Object, 0, len(list))
	for _, o := range list {
		if obj, ok := o.(metav1.Object); ok {
			objs = append(objs, obj)
		}
	}
	s.look(s.graph.replace(s.resource, objs)...)
	s.once.Do(func() { close(s.filled) })
	s.changed()
	return nil
}

// Resync has nothing to do.
func (s *source) Resync() error { return nil }

// sources are the watches that run now.
type sources struct {
	metadata metadata.Interface
	shared   map[schema.GroupVersionResource]cache.SharedIndexInformer // kinds that other controllers watch anyway
	graph    *graph
	look     func(...types.UID)
	notify   func()
	mu       sync.Mutex
	running  map[schema.GroupVersionResource]*source
	wg       sync.WaitGroup
}

// sync starts and stops watches so that exactly want runs.
func (s *sources) sync(ctx context.Context, want []resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[schema.GroupVersionResource]bool{}
	for _, r := range want {
		wanted[r.gvr] = true
		if s.running[r.gvr] == nil {
			s.start(ctx, r)
		}
	}
	for gvr, src := range s.running {
		if !wanted[gvr] {
			src.cancel()
			delete(s.running, gvr)
			s.graph.forget(gvr)
		}
	}
}

// definers are the kinds whose objects define other kinds.
var definers = map[schema.GroupResource]bool{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             true,
}

func (s *sources) start(ctx context.Context, r resource) {
	ctx, cancel := context.WithCancel(ctx)
	src := &source{resource: r, graph: s.graph, look: s.look, filled: make(chan struct{}), since: time.Now(), cancel: cancel}
	if definers[r.gvr.GroupResource()] {
		src.notify = s.notify
	}
	s.running[r.gvr] = src
	if informer := s.shared[r.gvr]; informer != nil && s.follow(ctx, src, informer) {
		return
	}
	client := s.metadata.Resource(r.gvr)
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, s.metadata)
	reflector := cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, src, cache.ReflectorOptions{
		Name: "garbage " + r.gvr.String(), TypeDescription: r.gvr.String(),
	})
	s.wg.Go(func() { fault.KeepDo(ctx, "controller", reflector.RunWithContext) })
}

// follow feeds a source from an informer that runs already. It reports false when the informer takes no more handlers.
func (s *sources) follow(ctx context.Context, src *source, informer cache.SharedIndexInformer) bool {
	registration, err := informer.AddEventHandler(eventhandler.Contain("controller events", cache.ResourceEventHandlerFuncs{
		AddFunc:    src.take,
		UpdateFunc: func(_, now any) { src.take(now) },
		DeleteFunc: func(o any) { _ = src.Delete(o) },
	}))
	if err != nil {
		return false
	}
	s.wg.Go(fault.Contained("leader/garbage", func() {
		if cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
			src.once.Do(func() { close(src.filled) })
		}
		<-ctx.Done()
		_ = informer.RemoveEventHandler(registration)
	}))
	return true
}

// settled reports whether every kind has been listed, or has had its time to.
func (s *sources) settled(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.running {
		if !src.isFilled() && now.Sub(src.since) < patience {
			return false
		}
	}
	return true
}
