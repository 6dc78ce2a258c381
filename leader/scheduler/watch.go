package scheduler

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// watch adds the scheduler's handlers to the informers. remove removes them; it may also be called after an error.
func (s *Scheduler) watch() (remove func(), synced []cache.DoneChecker, err error) {
	core, apps, storage := s.cfg.Informers.Core().V1(), s.cfg.Informers.Apps().V1(), s.cfg.Informers.Storage().V1()
	resources := s.cfg.Informers.Resource().V1()
	rows := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.Nodes().Informer(), s.nodeHandler()},
		{core.Pods().Informer(), s.podHandler()},
		{core.PersistentVolumeClaims().Informer(), s.claimHandler()},
		{core.PersistentVolumes().Informer(), s.plainHandler(queue.Volume)},
		{storage.StorageClasses().Informer(), s.plainHandler(queue.StorageClass)},
		{storage.CSINodes().Informer(), s.plainHandler(queue.CSINode)},
		{storage.CSIDrivers().Informer(), s.plainHandler(queue.CSIDriver)},
		{storage.CSIStorageCapacities().Informer(), s.plainHandler(queue.StorageCapacity)},
		{core.Namespaces().Informer(), s.plainHandler(queue.Namespace)},
		{resources.ResourceClaims().Informer(), s.deviceClaimHandler()},
		{resources.ResourceSlices().Informer(), s.sliceHandler()},
		{resources.DeviceClasses().Informer(), s.classHandler()},
	}
	var undo []func()
	remove = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, row := range rows {
		registration, err := row.informer.AddEventHandler(eventhandler.Contain("scheduler events", row.handler))
		if err != nil {
			return remove, nil, err
		}
		undo = append(undo, func() { _ = row.informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSyncedChecker())
	}
	for _, informer := range []cache.SharedIndexInformer{ // the rules read these; no event of theirs brings a pod back
		core.Services().Informer(), core.ReplicationControllers().Informer(), apps.ReplicaSets().Informer(),
		apps.StatefulSets().Informer(), s.cfg.Informers.Policy().V1().PodDisruptionBudgets().Informer(),
	} {
		synced = append(synced, informer.HasSyncedChecker())
	}
	return remove, synced, nil
}

func (s *Scheduler) plainHandler(kind queue.Kind) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.queue.Happened(queue.Event{Kind: kind, Action: queue.Add, New: obj}) },
		UpdateFunc: func(old, obj any) {
			s.queue.Happened(queue.Event{Kind: kind, Action: queue.Update, Old: old, New: obj})
		},
	}
}

func (s *Scheduler) claimHandler() cache.ResourceEventHandler {
	plain := s.plainHandler(queue.Claim)
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			plain.OnAdd(obj, false)
			s.volumes.claimChanged()
		},
		UpdateFunc: func(old, obj any) {
			plain.OnUpdate(old, obj)
			s.volumes.claimChanged()
		},
		DeleteFunc: func(any) { s.volumes.claimChanged() },
	}
}

func (s *Scheduler) nodeHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			s.cache.SetNode(obj.(*v1.Node))
			s.queue.Happened(queue.Event{Kind: queue.Node, Action: queue.Add, New: obj})
		},
		UpdateFunc: func(before, obj any) {
			old, n := before.(*v1.Node), obj.(*v1.Node)
			matters := nodeMatters(old, n)
			if matters || !equality.Semantic.DeepEqual(old.Status.Images, n.Status.Images) {
				s.cache.SetNode(n)
			}
			if matters {
				s.queue.Happened(queue.Event{Kind: queue.Node, Action: queue.Update, Old: old, New: n})
			}
		},
		DeleteFunc: func(obj any) {
			if n, ok := final(obj).(*v1.Node); ok {
				s.cache.RemoveNode(n.Name)
				s.queue.Happened(queue.Event{Kind: queue.Node, Action: queue.Delete, Old: n})
			}
		},
	}
}

// nodeMatters reports whether a node changed in a field that placement depends on. A heartbeat does not.
func nodeMatters(old, n *v1.Node) bool {
	return old.UID != n.UID || old.Spec.Unschedulable != n.Spec.Unschedulable ||
		!maps.Equal(old.Labels, n.Labels) ||
		!equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) ||
		!equality.Semantic.DeepEqual(old.Status.Allocatable, n.Status.Allocatable)
}

func (s *Scheduler) podHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.podChanged(nil, obj.(*v1.Pod)) },
		UpdateFunc: func(before, obj any) {
			old, p := before.(*v1.Pod), obj.(*v1.Pod)
			if old.UID != p.UID { // the pod was deleted and another with its name made; the informer saw one update
				s.podGone(old)
				old = nil
			}
			s.podChanged(old, p)
		},
		DeleteFunc: func(obj any) {
			if p, ok := final(obj).(*v1.Pod); ok {
				s.podGone(p)
			}
		},
	}
}

// final returns the object of a deletion, also of one that the informer missed.
func final(obj any) any {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return obj
}

func (s *Scheduler) podChanged(old, p *v1.Pod) {
	fault.Point("scheduler/events")
	if p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
		s.podGone(p)
		return
	}
	bound := p.Spec.NodeName != ""
	if !bound && (s.deciders[p.Spec.SchedulerName] == nil || p.DeletionTimestamp != nil) {
		s.queue.Delete(p.UID)
		s.nominator.Clear(p.UID)
		return
	}
	info, err := snapshot.NewPod(p)
	if err != nil {
		s.cfg.Logger.Error("cannot read a pod's affinity, the pod is left out", "namespace", p.Namespace, "pod", p.Name, "err", err)
		return
	}
	if bound {
		s.podBound(old, info)
		return
	}
	if known, _ := s.cache.Known(p.UID); known {
		return // the pod is assumed, its binding is being written
	}
	if node := p.Status.NominatedNodeName; node != "" && (old == nil || old.Status.NominatedNodeName != node) {
		s.nominator.Set(info, node)
	}
	s.queue.Add(info)
}

func (s *Scheduler) podBound(old *v1.Pod, info *snapshot.Pod) {
	p := info.Object
	s.cache.Put(info)
	if old == nil || old.Spec.NodeName == "" {
		s.queue.Delete(p.UID)
		s.nominator.Clear(p.UID)
		s.queue.Happened(queue.Event{Kind: queue.Pod, Action: queue.Add, New: p})
		return
	}
	if boundMatters(old, p) {
		s.queue.Happened(queue.Event{Kind: queue.Pod, Action: queue.Update, Old: old, New: p})
	}
}

// boundMatters reports whether a pod on a node changed in a field that the placement of other pods depends on.
func boundMatters(old, p *v1.Pod) bool {
	return !maps.Equal(old.Labels, p.Labels) || old.Generation != p.Generation ||
		(old.DeletionTimestamp == nil) != (p.DeletionTimestamp == nil) ||
		!slices.EqualFunc(old.Status.ContainerStatuses, p.Status.ContainerStatuses, func(a, b v1.ContainerStatus) bool {
			return equality.Semantic.DeepEqual(a.AllocatedResources, b.AllocatedResources) &&
				equality.Semantic.DeepEqual(a.Resources, b.Resources)
		})
}

// podGone handles a pod that was deleted or has ended.
func (s *Scheduler) podGone(p *v1.Pod) {
	s.queue.Delete(p.UID)
	nominated := s.nominator.Node(p.UID) != ""
	s.nominator.Clear(p.UID)
	if held := s.cache.Remove(p.UID); held != nil || nominated {
		s.queue.Happened(queue.Event{Kind: queue.Pod, Action: queue.Delete, Old: p})
	}
}
