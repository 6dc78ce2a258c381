package podloop

import (
	"sort"

	v1 "k8s.io/api/core/v1"
)

// Grant is what a node has allocated to a pod, and its answer to the resize that the pod asks for.
type Grant struct {
	Asked      Resources // the resources of the spec that was judged
	Allocated  Resources
	Generation int64 // of the pod that has Allocated in its spec
	// Pending is why Asked is not allocated; nil: it is.
	Pending *Pending
}

// Pending is the reason of a condition PodResizePending, v1.PodReasonDeferred or v1.PodReasonInfeasible.
type Pending struct {
	Reason, Message string
	Generation      int64
}

// Resizing is a resize that is allocated and not yet in force. Reason is v1.PodReasonError after a failure.
type Resizing struct {
	Reason, Message string
	Generation      int64
}

// resizePod adds the action that brings the pod's cgroups to what is allocated. A container that starts again for its resize is
// waited for: no cgroup may be smaller than one inside it.
func resizePod(pod *v1.Pod, o *Observed, d *Decision) {
	if o.Actual.AsAllocated() || o.IsBusy(ResizePod, "") || !RetryDue(o, o.ResizeRetry, d) {
		return
	}
	for name := range o.Actual.Containers {
		if o.IsBusy(StartContainer, name) || o.IsBusy(KillContainer, name) {
			return
		}
		if c, _ := FindContainer(pod, name); c != nil && restartsToResize(pod, o, c) {
			return
		}
	}
	d.add(Action{Verb: ResizePod})
}

// restartsToResize reports whether a container has other resources than the allocated ones and its resize policy asks for a
// restart on a change of one that differs.
func restartsToResize(pod *v1.Pod, o *Observed, c *v1.Container) bool {
	given, differs := o.Actual.Containers[c.Name]
	if !differs {
		return false
	}
	is, want := given.Amounts(), GivenOf(pod, c).Amounts()
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy != v1.RestartContainer {
			continue
		}
		switch p.ResourceName {
		case v1.ResourceCPU:
			if is.CPURequest != want.CPURequest || is.CPULimit != want.CPULimit {
				return true
			}
		case v1.ResourceMemory:
			if is.MemoryRequest != want.MemoryRequest || is.MemoryLimit != want.MemoryLimit {
				return true
			}
		}
	}
	return false
}

// Change is the resize of one running container.
type Change struct {
	Container *v1.Container
	ID        string
	From, To  Amounts
}

// Changes returns the containers to resize, those whose memory limit shrinks first.
func Changes(pod *v1.Pod, a *Actual) []Change {
	var out []Change
	for name, given := range a.Containers {
		if c, _ := FindContainer(pod, name); c != nil && given.ID != "" {
			out = append(out, Change{Container: c, ID: given.ID, From: given.Amounts(), To: GivenOf(pod, c).Amounts()})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if x, y := a.Shrinks(), b.Shrinks(); x != y {
			return x
		}
		return a.Container.Name < b.Container.Name
	})
	return out
}

// Shrinks reports whether the memory limit becomes smaller, or is the first.
func (c Change) Shrinks() bool {
	return c.To.MemoryLimit != 0 && (c.From.MemoryLimit == 0 || c.To.MemoryLimit < c.From.MemoryLimit)
}
