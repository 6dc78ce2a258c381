package scheduler

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/scheduler/queue"
)

// deviceClaimHandler says which devices claims have before it revives pods.
func (s *Scheduler) deviceClaimHandler() cache.ResourceEventHandler {
	changed := func(action queue.Action, old, now *resourceapi.ResourceClaim) {
		s.listers.Devices.ClaimChanged(old, now)
		e := queue.Event{Kind: queue.ResourceClaim, Action: action, Old: old}
		if now != nil {
			e.New = now
		}
		s.queue.Happened(e)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { changed(queue.Add, nil, obj.(*resourceapi.ResourceClaim)) },
		UpdateFunc: func(old, obj any) {
			changed(queue.Update, old.(*resourceapi.ResourceClaim), obj.(*resourceapi.ResourceClaim))
		},
		DeleteFunc: func(obj any) {
			if claim, ok := final(obj).(*resourceapi.ResourceClaim); ok {
				changed(queue.Delete|queue.Update, claim, nil)
			}
		},
	}
}

func (s *Scheduler) sliceHandler() cache.ResourceEventHandler {
	plain := s.plainHandler(queue.ResourceSlice)
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			s.listers.Devices.SlicesChanged()
			plain.OnAdd(obj, false)
		},
		UpdateFunc: func(old, obj any) {
			s.listers.Devices.SlicesChanged()
			plain.OnUpdate(old, obj)
		},
		DeleteFunc: func(any) { s.listers.Devices.SlicesChanged() },
	}
}

// classHandler says for which extended resources classes stand before it revives pods.
func (s *Scheduler) classHandler() cache.ResourceEventHandler {
	classes, plain := s.listers.Devices.ClassHandler(), s.plainHandler(queue.DeviceClass)
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			classes.OnAdd(obj, false)
			plain.OnAdd(obj, false)
		},
		UpdateFunc: func(old, obj any) {
			classes.OnUpdate(old, obj)
			plain.OnUpdate(old, obj)
		},
		DeleteFunc: classes.OnDelete,
	}
}
