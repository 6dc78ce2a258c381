package cri

import (
	"context"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/fault"
)

// Unit names the handling of the runtime's events where panics are counted.
const Unit = "node/runtime events"

// resubscribeDelay is the wait before the events are subscribed to again after they ended.
const resubscribeDelay = time.Second

// Events passes the events of containers on. Events that were missed are made up for by Relist.
type Events struct {
	Runtime criapi.RuntimeService
	// Handle takes in one event. When it panics, Relist is called.
	Handle func(*runtimeapi.ContainerEventResponse)
	// Relist lists the runtime: after events were missed, and every RelistInterval although none was.
	Relist         func(context.Context)
	RelistInterval time.Duration
	// Ended is told why the stream of events broke; it will be made anew.
	Ended func(error)
}

// Run follows the runtime until ctx ends.
func (e *Events) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := make(chan *runtimeapi.ContainerEventResponse, 256)
	broken, established := make(chan error, 1), make(chan struct{}, 1)
	subscribe := func() {
		broken <- fault.Contain(Unit, func() error {
			return e.Runtime.GetContainerEvents(ctx, ch, func(runtimeapi.RuntimeService_GetContainerEventsClient) {
				select {
				case established <- struct{}{}:
				default:
				}
			})
		})
	}
	go fault.Contained(Unit, subscribe)()
	first := true
	tick := time.NewTicker(e.RelistInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			<-broken
			return
		case event := <-ch:
			if err := fault.Do(Unit, func() { e.Handle(event) }); err != nil {
				e.Relist(ctx)
			}
		case <-established:
			if !first {
				e.Relist(ctx) // events between the end of the former stream and this one are lost
			}
			first = false
		case err := <-broken:
			if ctx.Err() != nil {
				return
			}
			e.Ended(err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(resubscribeDelay):
			}
			e.Relist(ctx)
			go fault.Contained(Unit, subscribe)()
		case <-tick.C:
			e.Relist(ctx)
		}
	}
}
