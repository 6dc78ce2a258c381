package podloop

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Resources are the resources of a pod's spec: of the pod as a whole, and of its init and regular containers by name.
type Resources struct {
	Pod        *v1.ResourceRequirements           `json:"pod,omitempty"`
	Containers map[string]v1.ResourceRequirements `json:"containers,omitempty"`
}

// ResourcesOf returns the resources that the spec asks for.
func ResourcesOf(pod *v1.Pod) Resources {
	r := Resources{Pod: pod.Spec.Resources.DeepCopy(), Containers: map[string]v1.ResourceRequirements{}}
	for _, c := range resizable(pod) {
		r.Containers[c.Name] = *c.Resources.DeepCopy()
	}
	return r
}

// Are reports whether the spec asks for these resources.
func (r Resources) Are(pod *v1.Pod) bool {
	if !apiequality.Semantic.DeepEqual(r.Pod, pod.Spec.Resources) {
		return false
	}
	for _, c := range resizable(pod) {
		if have, ok := r.Containers[c.Name]; ok && !apiequality.Semantic.DeepEqual(have, c.Resources) {
			return false
		}
	}
	return true
}

// On returns the pod with these resources in its spec. It is the same object when the spec has them already.
func (r Resources) On(pod *v1.Pod) *v1.Pod {
	if r.Are(pod) {
		return pod
	}
	out := *pod
	out.Spec.Resources = r.Pod
	out.Spec.Containers, out.Spec.InitContainers = r.onContainers(pod.Spec.Containers), r.onContainers(pod.Spec.InitContainers)
	return &out
}

func (r Resources) onContainers(cs []v1.Container) []v1.Container {
	if cs == nil {
		return nil
	}
	out := make([]v1.Container, len(cs))
	for i := range cs {
		out[i] = cs[i]
		if have, ok := r.Containers[cs[i].Name]; ok {
			out[i].Resources = have
		}
	}
	return out
}

// resizable returns the containers whose resources may change while the pod runs.
func resizable(pod *v1.Pod) []*v1.Container {
	out := make([]*v1.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// Given is what one container runs with: its own resources, and the limits of its pod, which hold where it has none.
type Given struct {
	ID        string                  `json:"id,omitempty"` // of the container; empty while it starts
	Resources v1.ResourceRequirements `json:"resources"`
	PodLimits v1.ResourceList         `json:"podLimits,omitempty"`
}

// GivenOf returns what a container gets that starts with the pod's spec.
func GivenOf(pod *v1.Pod, c *v1.Container) Given {
	g := Given{Resources: c.Resources}
	if pod.Spec.Resources != nil {
		g.PodLimits = pod.Spec.Resources.Limits
	}
	return g
}

// Amounts are the CPU in thousandths and the memory in bytes of one container. A limit of 0 means none.
type Amounts struct{ CPURequest, CPULimit, MemoryRequest, MemoryLimit int64 }

// Amounts returns what is in force.
func (g Given) Amounts() Amounts {
	cpu, memory := g.Resources.Limits.Cpu(), g.Resources.Limits.Memory()
	if cpu.IsZero() {
		cpu = g.PodLimits.Cpu()
	}
	if memory.IsZero() {
		memory = g.PodLimits.Memory()
	}
	return Amounts{CPURequest: g.Resources.Requests.Cpu().MilliValue(), CPULimit: cpu.MilliValue(),
		MemoryRequest: g.Resources.Requests.Memory().Value(), MemoryLimit: memory.Value()}
}

// Actual is how the cgroups of a pod differ from its allocation while a resize is carried out. The zero value says that they
// do not.
type Actual struct {
	// Group: the pod's own cgroup is not yet as allocated; Pod are the pod's resources that it has.
	Group bool                     `json:"group,omitempty"`
	Pod   *v1.ResourceRequirements `json:"pod,omitempty"`
	// Containers are those that run, or are being started, with other resources than the allocated ones.
	Containers map[string]Given `json:"containers,omitempty"`
}

// AsAllocated reports whether nothing differs.
func (a *Actual) AsAllocated() bool { return !a.Group && len(a.Containers) == 0 }

// Allocate notes that the allocation changes from the spec of was to the spec of now. instance returns the ID of a container's
// process, empty while it starts; false when it has none.
func (a *Actual) Allocate(was, now *v1.Pod, instance func(name string) (string, bool)) {
	if !a.Group {
		a.Group, a.Pod = true, was.Spec.Resources
	}
	for _, c := range resizable(was) {
		given, noted := a.Containers[c.Name]
		if id, has := instance(c.Name); !has {
			delete(a.Containers, c.Name)
			continue
		} else if !noted {
			given = GivenOf(was, c)
			given.ID = id
		}
		a.note(now, c.Name, given)
	}
}

// Started notes that a container has started with given.
func (a *Actual) Started(pod *v1.Pod, name string, given Given) { a.note(pod, name, given) }

// Ended notes that a container with this ID has ended: the next start takes what is allocated.
func (a *Actual) Ended(name, id string) {
	if a.Containers[name].ID == id {
		delete(a.Containers, name)
	}
}

func (a *Actual) note(pod *v1.Pod, name string, given Given) {
	c, _ := FindContainer(pod, name)
	if c == nil || given.Amounts() == GivenOf(pod, c).Amounts() {
		delete(a.Containers, name)
		return
	}
	if a.Containers == nil {
		a.Containers = map[string]Given{}
	}
	a.Containers[name] = given
}

// Keep forgets the containers for which instance does not return the noted ID: they are others than those that were resized.
func (a *Actual) Keep(instance func(name string) (string, bool)) {
	maps.DeleteFunc(a.Containers, func(name string, g Given) bool {
		id, has := instance(name)
		return !has || id != g.ID
	})
}

// On returns the pod with the resources that are in force.
func (a *Actual) On(pod *v1.Pod) *v1.Pod {
	if a.AsAllocated() {
		return pod
	}
	r := Resources{Pod: pod.Spec.Resources, Containers: map[string]v1.ResourceRequirements{}}
	if a.Group {
		r.Pod = a.Pod
	}
	for name, g := range a.Containers {
		r.Containers[name] = g.Resources
	}
	return r.On(pod)
}
