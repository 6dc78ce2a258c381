package workqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
)

const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// Loop is a work queue with its workers. The zero value is not usable; see NewLoop.
type Loop[K comparable] struct {
	name      string
	workers   int
	reconcile func(context.Context, K) error
	log       *slog.Logger
	queue     workqueue.TypedRateLimitingInterface[K]
	synced    []cache.DoneChecker
}

// NewLoop returns a loop that calls reconcile for every key added, from as many goroutines as workers says. It starts
// nothing. The error reconcile returns is logged here and the key is retried with back-off.
func NewLoop[K comparable](env Env, workers int, reconcile func(context.Context, K) error) *Loop[K] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstRetry, lastRetry)
	return &Loop[K]{
		name:      env.Name,
		workers:   max(workers, 1),
		reconcile: reconcile,
		log:       env.Log,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[K]{
			Name: env.Name, Clock: metricsClock{},
		}),
	}
}

// Add queues key now, unless it is queued already.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter queues key when d has passed.
func (l *Loop[K]) AddAfter(key K, d time.Duration) { l.queue.AddAfter(key, d) }

// Need makes Run wait for one more cache before the first key is reconciled.
func (l *Loop[K]) Need(synced cache.DoneChecker) { l.synced = append(l.synced, synced) }

// Run waits until the caches the loop needs are filled, then works until ctx ends, and joins its workers.
func (l *Loop[K]) Run(ctx context.Context) error {
	defer l.drain()
	if !cache.WaitFor(ctx, "", l.synced...) {
		return nil
	}
	var workers sync.WaitGroup
	for range l.workers {
		workers.Go(fault.Contained("controller", func() {
			for l.next(ctx) {
			}
		}))
	}
	<-ctx.Done()
	l.queue.ShutDown()
	workers.Wait()
	return nil
}

// drain ends the queue and takes out what is left in it, so that workqueue_depth does not show keys of a term that is over.
func (l *Loop[K]) drain() {
	l.queue.ShutDown()
	for {
		key, stop := l.queue.Get()
		if stop {
			return
		}
		l.queue.Done(key)
	}
}

func (l *Loop[K]) next(ctx context.Context) bool {
	key, stop := l.queue.Get()
	if stop {
		return false
	}
	defer l.queue.Done(key)
	if ctx.Err() != nil {
		return true // drain
	}
	err := fault.Contain("controller/"+l.name, func() error {
		fault.Point("controller/" + l.name)
		return l.reconcile(ctx, key)
	})
	switch {
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil:
	default:
		l.report(key, err)
		l.queue.AddRateLimited(key)
	}
	return true
}

// ErrStale is wrapped by the error of a reconcile function whose cache does not show its own last write yet. It is retried and
// not logged.
var ErrStale = errors.New("the cache is behind")

func (l *Loop[K]) report(key K, err error) {
	level := slog.LevelWarn
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, ErrStale) {
		level = slog.LevelDebug // another writer was first; the retry sees its write
	}
	l.log.Log(context.Background(), level, "reconcile failed, will retry", "controller", l.name, "key", fmt.Sprint(key), "err", err)
}

// Watch calls changed for every change the informer shows: old is the zero value when the object is new, now is the zero
// value when it is gone. The loop's Run waits until the informer's first list has been handed over.
func Watch[T any, K comparable](l *Loop[K], informer cache.SharedInformer, changed func(old, now T)) error {
	registration, err := informer.AddEventHandler(eventhandler.Contain("controller/"+l.name+" events", handler(changed)))
	if err != nil {
		return fmt.Errorf("watching for %s: %w", l.name, err)
	}
	l.Need(registration.HasSyncedChecker())
	return nil
}

// Need makes the loop wait for an informer that it only reads from.
func Need[K comparable](l *Loop[K], informers ...cache.SharedInformer) {
	for _, i := range informers {
		l.Need(i.HasSyncedChecker())
	}
}

func handler[T any](changed func(old, now T)) cache.ResourceEventHandler {
	var none T
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if now, ok := o.(T); ok {
				changed(none, now)
			}
		},
		UpdateFunc: func(o, n any) {
			old, ok1 := o.(T)
			now, ok2 := n.(T)
			if ok1 && ok2 {
				changed(old, now)
			}
		},
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			if old, ok := o.(T); ok {
				changed(old, none)
			}
		},
	}
}
