package podworker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/podloop"
)

// Asked returns the pod as the API has it, with the resources that its spec asks for.
func (w *Worker) Asked() *v1.Pod { return w.asked.Load() }

// Grant returns what is allocated to the pod.
func (w *Worker) Grant() *podloop.Grant { return w.granted.Load() }

// Allocated returns the pod with what is allocated to it; read-only.
func (w *Worker) Allocated() *v1.Pod { return w.Grant().Allocated.On(w.View().Pod) }

// Allot hands the worker the node's answer to the resources that its pod asks for.
func (w *Worker) Allot(g *podloop.Grant) {
	w.granted.Store(g)
	w.Wake()
}

// takeGrant takes over the node's newest answer: what is allocated becomes the pod's spec here.
func (w *Worker) takeGrant() {
	was, g := w.grant, w.granted.Load()
	w.grant = g
	w.observed.Undecided = !g.Asked.Are(w.asked.Load())
	if was == g {
		return
	}
	if p := g.Pending; p != nil && (was.Pending == nil || was.Pending.Reason != p.Reason || was.Pending.Generation != p.Generation) {
		w.event(v1.EventTypeWarning, "Resize"+p.Reason, resizeText(w.asked.Load(), "Pod resize "+p.Reason, p.Generation, p.Message))
	}
	w.observed.Pending = g.Pending
	before := w.pod
	w.pod = g.Allocated.On(w.asked.Load())
	if was.Allocated.Are(w.pod) {
		return
	}
	w.observed.Actual.Allocate(before, w.pod, w.instance)
	w.observed.ResizeRetry, w.observed.Resizing, w.volumesStale = nil, &podloop.Resizing{Generation: g.Generation}, true
	w.saveRecord()
	w.event(v1.EventTypeNormal, "ResizeStarted", resizeText(w.pod, "Pod resize started", g.Generation, ""))
}

// instance returns the ID of the running container of a name, empty while one starts; false when there is none.
func (w *Worker) instance(name string) (string, bool) {
	if in := w.observed.Latest(name); in != nil && in.State == podloop.StateRunning {
		return in.ID, true
	}
	return "", w.observed.IsBusy(podloop.StartContainer, name)
}

// endResize ends the resize that is carried out when nothing differs from what is allocated.
func (w *Worker) endResize() {
	r := w.observed.Resizing
	if r == nil || !w.observed.Actual.AsAllocated() {
		return
	}
	w.observed.Resizing, w.observed.ResizeRetry = nil, nil
	w.saveRecord()
	w.event(v1.EventTypeNormal, "ResizeCompleted", resizeText(w.pod, "Pod resize completed", r.Generation, ""))
}

// resizeText is the text of an event, with the resources in JSON as upstream writes them.
func resizeText(pod *v1.Pod, what string, generation int64, fault string) string {
	type container struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources"`
	}
	s := struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}{Generation: generation, Error: fault}
	for i := range pod.Spec.InitContainers {
		s.InitContainers = append(s.InitContainers, container{pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		s.Containers = append(s.Containers, container{pod.Spec.Containers[i].Name, pod.Spec.Containers[i].Resources})
	}
	b, err := json.Marshal(s)
	if err != nil {
		return what
	}
	return what + ": " + string(b)
}

// resizePod gives the pod's cgroup and its running containers what is allocated: the pod's cgroup grows before the containers
// and shrinks after them.
func (w *Worker) resizePod() operation {
	pod := w.pod
	changes := podloop.Changes(pod, &w.observed.Actual)
	return func(ctx context.Context) func() {
		done, err := w.host.resize(ctx, pod, changes)
		cut := ctx.Err() != nil // the pod is stopping, or the process ends
		return func() {
			for _, c := range done {
				w.observed.Actual.Started(w.pod, c.Container.Name, podloop.Given{ID: c.ID, Resources: c.Container.Resources, PodLimits: podloop.GivenOf(pod, c.Container).PodLimits})
			}
			if err == nil && w.grant.Allocated.Are(pod) {
				w.observed.Actual.Group, w.observed.Actual.Pod = false, nil
			}
			w.saveRecord()
			if err != nil && !cut {
				w.resizeFailed(err)
			}
		}
	}
}

// A resize that failed is tried again after one second to one minute: mostly it waits for a pod that uses more memory than the
// new limit.
const (
	minResizeDelay = time.Second
	maxResizeDelay = time.Minute
)

func (w *Worker) resizeFailed(err error) {
	why := podloop.Failure{Reason: v1.PodReasonError, Message: message(err)}
	w.observed.ResizeRetry = w.observed.ResizeRetry.Again(w.observed.Now, why, minResizeDelay, maxResizeDelay)
	r := w.observed.Resizing
	if r == nil {
		r = &podloop.Resizing{Generation: w.grant.Generation}
	}
	if r.Reason == "" {
		w.event(v1.EventTypeWarning, "ResizeError", resizeText(w.pod, "Pod resize error", r.Generation, why.Message))
	}
	w.observed.Resizing = &podloop.Resizing{Reason: why.Reason, Message: why.Message, Generation: r.Generation}
}

// resize carries out changes, and returns those that were carried out when one failed.
func (h *Host) resize(ctx context.Context, pod *v1.Pod, changes []podloop.Change) ([]podloop.Change, error) {
	qos := v1qos.GetPodQOS(pod)
	to := h.podLimits(pod, qos)
	from, err := h.Cgroups.Read(pod.UID, qos)
	if err != nil {
		return nil, err
	}
	if err := h.usesLess(ctx, pod, cgroupChange{from, to}, changes); err != nil {
		return nil, err
	}
	if _, err := h.Cgroups.Apply(pod.UID, qos, cgroup.Raised(from, to)); err != nil {
		return nil, err
	}
	for i, c := range changes {
		r := &runtimeapi.ContainerResources{Linux: h.containerResources(pod, c.Container)}
		if err := h.Runtime.UpdateContainerResources(ctx, c.ID, r); err != nil {
			return changes[:i], err
		}
	}
	_, err = h.Cgroups.Apply(pod.UID, qos, to)
	return changes, err
}

type cgroupChange struct{ from, to cgroup.Limits }

// usesLess returns an error when the pod or a container uses more memory than its new, smaller limit: the kernel would
// refuse the limit, or kill a process. The usage may grow in the next moment, so this check is no guarantee.
func (h *Host) usesLess(ctx context.Context, pod *v1.Pod, group cgroupChange, changes []podloop.Change) error {
	var faults []error
	if m := group.to.Memory; m > 0 && (group.from.Memory < 0 || m < group.from.Memory) {
		used, err := h.Cgroups.MemoryUsage(pod.UID, v1qos.GetPodQOS(pod))
		if err != nil {
			return err
		}
		if used >= m {
			faults = append(faults, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", m, used))
		}
	}
	for _, c := range changes {
		if !c.Shrinks() {
			continue
		}
		stats, err := h.Runtime.ContainerStats(ctx, c.ID)
		if err != nil {
			return fmt.Errorf("memory usage of container %q: %w", c.Container.Name, err)
		}
		if used := int64(stats.GetMemory().GetUsageBytes().GetValue()); used >= c.To.MemoryLimit {
			faults = append(faults, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", c.Container.Name, c.To.MemoryLimit, used))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("cannot decrease memory limits: %w", err)
	}
	return nil
}

// growGroup widens the pod's cgroup for a container that starts with more than the cgroup has.
func (h *Host) growGroup(pod *v1.Pod) error {
	qos := v1qos.GetPodQOS(pod)
	from, err := h.Cgroups.Read(pod.UID, qos)
	if err != nil {
		return err
	}
	_, err = h.Cgroups.Apply(pod.UID, qos, cgroup.Raised(from, h.podLimits(pod, qos)))
	return err
}
