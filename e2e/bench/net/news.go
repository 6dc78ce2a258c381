package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// news records when a watch received each version of the endpoints.
type news struct {
	watch *watchtools.RetryWatcher
	ended chan struct{}

	mu sync.Mutex
	at map[string]time.Time // by resourceVersion
}

// listen starts the watch, which runs until close.
func (l *lab) listen(ctx context.Context) (*news, error) {
	slices := l.client.DiscoveryV1().EndpointSlices(namespace)
	list, err := slices.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	n := &news{at: map[string]time.Time{}, ended: make(chan struct{})}
	n.watch, err = watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return slices.Watch(ctx, o) },
	})
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(n.ended)
		for event := range n.watch.ResultChan() {
			at := time.Now()
			if slice, ok := event.Object.(*discovery.EndpointSlice); ok && event.Type == watch.Modified {
				n.mu.Lock()
				n.at[slice.ResourceVersion] = at
				n.mu.Unlock()
			}
		}
	}()
	return n, nil
}

// of returns the time at which a version was received.
func (n *news) of(ctx context.Context, version string) (at time.Time, err error) {
	err = until(ctx, patience, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		var heard bool
		if at, heard = n.at[version]; !heard {
			return fmt.Errorf("the watch has not received version %s", version)
		}
		return nil
	})
	return at, err
}

func (n *news) close() {
	n.watch.Stop()
	<-n.ended
}
