package rules

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/balsahq/balsa/leader/scheduler/devices"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// Fit refuses nodes that lack a resource that the pod requests, or room for one more pod.
var Fit = Filter{
	Name: "NodeResourcesFit",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		f := &fit{request: &c.Pod.Request, scalars: slices.Sorted(maps.Keys(c.Pod.Request.Scalar)), backed: c.Listers.Devices.Backed(c.Pod.Request.Scalar)}
		return f, nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Pod, Action: queue.Delete},
		{Kind: queue.Pod, Action: queue.Update, Helps: func(_ *v1.Pod, e queue.Event) bool { return shrank(podOf(e.Old), podOf(e.New)) }},
		{Kind: queue.Node, Action: queue.Add | queue.Update, Helps: func(p *v1.Pod, e queue.Event) bool {
			return mayFit(p, nodeOf(e.Old), nodeOf(e.New))
		}},
		{Kind: queue.DeviceClass, Action: queue.Add | queue.Update, Helps: standsFor},
	},
}

// FitIgnoring is Fit without the extended resources that ignored names: another program counts them.
func FitIgnoring(ignored func(v1.ResourceName) bool) Filter {
	f := Fit
	f.Prepare = func(c *Cycle) (Check, *Refusal) {
		return &fit{request: &c.Pod.Request, scalars: slices.DeleteFunc(slices.Sorted(maps.Keys(c.Pod.Request.Scalar)), ignored)}, nil
	}
	f.Undo = append(slices.Clone(f.Undo), queue.Hint{Kind: queue.Node, Action: queue.Add | queue.Update}) // mayFit counts them
	return f
}

type fit struct {
	request *snapshot.Resource
	scalars []v1.ResourceName
	backed  map[v1.ResourceName]string // by a DeviceClass, which counts where the node has none of its own; see Devices
}

// Admit returns every resource that the node lacks, so that the user sees all of them at once.
func (f *fit) Admit(n *snapshot.Node) *Refusal {
	r, have, used := f.request, &n.Allocatable, &n.Requested
	var s shortage
	if int64(len(n.Pods))+1 > have.Pods {
		s.reasons = append(s.reasons, "Too many pods")
	}
	s.check("cpu", r.MilliCPU, have.MilliCPU, used.MilliCPU)
	s.check("memory", r.Memory, have.Memory, used.Memory)
	s.check("ephemeral-storage", r.EphemeralStorage, have.EphemeralStorage, used.EphemeralStorage)
	for _, name := range f.scalars {
		if f.backed[name] != "" && have.Scalar[name] == 0 {
			continue
		}
		s.check(string(name), r.Scalar[name], have.Scalar[name], used.Scalar[name])
	}
	if s.reasons == nil {
		return nil
	}
	return &Refusal{Reasons: s.reasons, Final: s.final}
}

type shortage struct {
	reasons []string
	final   bool
}

func (s *shortage) check(name string, want, have, used int64) {
	if want == 0 || want <= have-used {
		return
	}
	s.reasons = append(s.reasons, "Insufficient "+name)
	s.final = s.final || want > have
}

// mayFit reports whether the pod fits on node n if n were empty, and, if n changed from old, whether it offers more of some resource than
// before.
func mayFit(p *v1.Pod, old, n *v1.Node) bool {
	if n == nil {
		return false
	}
	grew := old == nil
	for name, want := range resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}) {
		have := n.Status.Allocatable[name]
		if have.IsZero() && devices.CanBeClass(name) {
			grew = true // a DeviceClass may stand for it
			continue
		}
		if want.Cmp(have) > 0 && !want.IsZero() {
			return false
		}
		if old != nil {
			before := old.Status.Allocatable[name]
			grew = grew || have.Cmp(before) > 0
		}
	}
	if old != nil {
		grew = grew || n.Status.Allocatable.Pods().Cmp(*old.Status.Allocatable.Pods()) > 0
	}
	return grew
}

// standsFor reports whether a DeviceClass stands for an extended resource that the pod requests.
func standsFor(p *v1.Pod, e queue.Event) bool {
	class, _ := e.New.(*resourceapi.DeviceClass)
	if class == nil {
		return false
	}
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	_, implicit := requests[v1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)]
	if implicit || class.Spec.ExtendedResourceName == nil {
		return implicit
	}
	_, named := requests[v1.ResourceName(*class.Spec.ExtendedResourceName)]
	return named
}

// shrank reports whether a running pod's request for some resource became smaller.
func shrank(old, now *v1.Pod) bool {
	if old == nil || now == nil {
		return false
	}
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	after := resourcehelper.PodRequests(now, opts)
	for name, q := range resourcehelper.PodRequests(old, opts) {
		if less := after[name]; less.Cmp(q) < 0 {
			return true
		}
	}
	return false
}
