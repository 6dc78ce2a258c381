package policy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// watches are the watches that run while there are policies.
type watches struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	settled bool // the first lists of everything are in the state
}

// startWatches starts the watches of pods, namespaces and nftables. The kernel is written to once their first lists are
// complete.
func (e *Engine) startWatches(ctx context.Context) *watches {
	ctx, stop := context.WithCancel(ctx)
	s := &watches{stop: stop}
	for _, part := range []func(context.Context){e.watchPods, e.watchNamespaces, e.watchKernel} {
		s.running.Go(func() { fault.KeepDo(ctx, "overlay/policy", part) })
	}
	return s
}

// stopWatches stops the watches, if they run, and drops pods and namespaces from the state.
func (e *Engine) stopWatches() {
	if e.watching == nil {
		return
	}
	e.watching.stop()
	e.watching.running.Wait()
	e.watching = nil
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.ForgetPods()
	e.listed, e.reread, e.rebuild = listed{}, false, false
	e.changes++
}

func (e *Engine) watchKernel(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for ctx.Err() == nil {
		if err := e.tables.Watch(ctx, e.foreignChange); err != nil && !errors.Is(err, context.Canceled) {
			e.cfg.Logger.Warn("cannot watch nftables; changes by other programs to the rules of network policies go unnoticed until it works again", "err", err)
		}
		pause(ctx, wait, retry)
	}
}

// eventStore is a cache.ReflectorStore that passes the objects of a watch on to the state. It stores nothing itself.
type eventStore[T runtime.Object] struct {
	e       *Engine
	set     func(s *plan.State, obj T) bool
	remove  func(s *plan.State, obj T) bool
	replace func(s *plan.State, list []T)
}

// Add implements cache.ReflectorStore.
func (s eventStore[T]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s eventStore[T]) Update(obj any) error {
	if o, ok := obj.(T); ok {
		s.e.change(func(state *plan.State) bool { return s.set(state, o) })
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (s eventStore[T]) Delete(obj any) error {
	if o, ok := obj.(T); ok {
		s.e.change(func(state *plan.State) bool { return s.remove(state, o) })
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s eventStore[T]) Replace(list []any, _ string) error {
	typed := make([]T, 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(T); ok {
			typed = append(typed, o)
		}
	}
	s.e.change(func(state *plan.State) bool {
		s.replace(state, typed)
		return true
	})
	return nil
}

// Resync implements cache.ReflectorStore.
func (s eventStore[T]) Resync() error { return nil }

// runReflector keeps a store up to date until ctx ends.
func runReflector[T runtime.Object, L runtime.Object](ctx context.Context, s eventStore[T], list func(context.Context, metav1.ListOptions) (L, error),
	watched func(context.Context, metav1.ListOptions) (watch.Interface, error)) {
	source := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: watched,
	}
	var kind T
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, s.e.cfg.Client), kind, s,
		cache.ReflectorOptions{}).RunWithContext(ctx)
}

func (e *Engine) watchPolicies(ctx context.Context) {
	api := e.cfg.Client.NetworkingV1().NetworkPolicies("")
	runReflector(ctx, eventStore[*networking.NetworkPolicy]{
		e: e,
		set: func(s *plan.State, np *networking.NetworkPolicy) bool {
			s.SetPolicy(e.compile(np))
			return true
		},
		remove: func(s *plan.State, np *networking.NetworkPolicy) bool {
			delete(e.faults, np.Namespace+"/"+np.Name)
			s.DeletePolicy(np.Namespace, np.Name)
			return true
		},
		replace: func(s *plan.State, list []*networking.NetworkPolicy) {
			clear(e.faults)
			compiled := make([]*plan.Policy, len(list))
			for i, np := range list {
				compiled[i] = e.compile(np)
			}
			s.ReplacePolicies(compiled)
			e.read = true
		},
	}, api.List, api.Watch)
}

// compile compiles a policy and logs its faults once; the caller holds e.mu.
func (e *Engine) compile(np *networking.NetworkPolicy) *plan.Policy {
	p := plan.Compile(np)
	name, text := np.Namespace+"/"+np.Name, strings.Join(p.Faults, "; ")
	switch {
	case text == "":
		delete(e.faults, name)
	case e.faults[name] != text:
		e.faults[name] = text
		e.cfg.Logger.Warn("parts of a network policy cannot be understood; they allow nothing", "policy", name, "parts", text)
	}
	return p
}

func (e *Engine) watchPods(ctx context.Context) {
	api := e.cfg.Client.CoreV1().Pods("")
	runReflector(ctx, eventStore[*v1.Pod]{
		e: e,
		set: func(s *plan.State, p *v1.Pod) bool {
			if pod, ok := plan.PodOf(p, e.cfg.NodeName); ok {
				return s.SetPod(pod)
			}
			return s.DeletePod(plan.PodKey{Namespace: p.Namespace, Name: p.Name}, p.UID)
		},
		remove: func(s *plan.State, p *v1.Pod) bool {
			return s.DeletePod(plan.PodKey{Namespace: p.Namespace, Name: p.Name}, p.UID)
		},
		replace: func(s *plan.State, list []*v1.Pod) {
			pods := make([]plan.Pod, 0, len(list))
			for _, p := range list {
				if pod, ok := plan.PodOf(p, e.cfg.NodeName); ok {
					pods = append(pods, pod)
				}
			}
			s.ReplacePods(pods)
			e.listed.pods = true
		},
	}, api.List, api.Watch)
}

func (e *Engine) watchNamespaces(ctx context.Context) {
	api := e.cfg.Client.CoreV1().Namespaces()
	runReflector(ctx, eventStore[*v1.Namespace]{
		e:      e,
		set:    func(s *plan.State, n *v1.Namespace) bool { return s.SetNamespace(n.Name, n.Labels) },
		remove: func(s *plan.State, n *v1.Namespace) bool { return s.DeleteNamespace(n.Name) },
		replace: func(s *plan.State, list []*v1.Namespace) {
			gone := map[string]bool{}
			for _, name := range s.Namespaces() {
				gone[name] = true
			}
			for _, n := range list {
				delete(gone, n.Name)
				s.SetNamespace(n.Name, n.Labels)
			}
			for name := range gone {
				s.DeleteNamespace(name)
			}
			e.listed.namespaces = true
		},
	}, api.List, api.Watch)
}
