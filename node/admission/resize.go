package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// Resize is a pod that asks for other resources than it has.
type Resize struct {
	Asked, Allocated *v1.Pod
}

// SortResizes puts resizes in the order in which they are judged: those that ask for no more than before, then by priority, then
// guaranteed pods, then those that wait longest.
func SortResizes(rs []Resize) {
	slices.SortStableFunc(rs, func(a, b Resize) int {
		if x, y := a.grows(), b.grows(); x != y {
			return yesLast(x)
		}
		if x, y := corev1.PodPriority(a.Asked), corev1.PodPriority(b.Asked); x != y {
			return int(y) - int(x)
		}
		if x, y := guaranteed(a.Asked), guaranteed(b.Asked); x != y {
			return -yesLast(x)
		}
		x, y := waitsSince(a.Asked), waitsSince(b.Asked)
		if x == y {
			return strings.Compare(string(a.Asked.UID), string(b.Asked.UID))
		}
		return strings.Compare(x, y)
	})
}

func yesLast(b bool) int {
	if b {
		return 1
	}
	return -1
}

// grows reports whether more CPU or memory is asked for than is allocated.
func (r Resize) grows() bool {
	asked, has := resource.PodRequests(r.Asked, resource.PodResourcesOptions{}), resource.PodRequests(r.Allocated, resource.PodResourcesOptions{})
	return asked.Cpu().Cmp(*has.Cpu()) > 0 || asked.Memory().Cmp(*has.Memory()) > 0
}

// Shrinks reports whether less CPU or memory is asked for than is allocated, so that another resize may fit now.
func (r Resize) Shrinks() bool { return Resize{Asked: r.Allocated, Allocated: r.Asked}.grows() }

func guaranteed(p *v1.Pod) bool { return v1qos.GetPodQOS(p) == v1.PodQOSGuaranteed }

// waitsSince returns the time from which the API shows the resize as pending, as text that sorts; a new one is last.
func waitsSince(p *v1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodResizePending {
			return c.LastTransitionTime.UTC().Format("2006-01-02T15:04:05")
		}
	}
	return "~"
}

// CheckResize returns why a pod may not have the resources in its spec, with the reason of the condition PodResizePending: nil
// when it may.
func CheckResize(in Input) *Refusal {
	if r := check(append([]rule{capacity}, rules...), in); r != nil {
		if r.Reason != v1.PodReasonInfeasible {
			return &Refusal{v1.PodReasonDeferred, r.Message}
		}
		return r
	}
	return nil
}

// CheckPinned refuses to change the CPU of a Guaranteed pod on a node whose containers get CPUs of their own.
func CheckPinned(r Resize) *Refusal {
	if !guaranteed(r.Asked) {
		return nil
	}
	asked, has := resource.AggregateContainerRequests(r.Asked, resource.PodResourcesOptions{}), resource.AggregateContainerRequests(r.Allocated, resource.PodResourcesOptions{})
	same := asked.Cpu().Equal(*has.Cpu())
	for i := range min(len(r.Asked.Spec.Containers), len(r.Allocated.Spec.Containers)) {
		same = same && r.Asked.Spec.Containers[i].Resources.Requests.Cpu().Equal(*r.Allocated.Spec.Containers[i].Resources.Requests.Cpu())
	}
	if same {
		return nil
	}
	return &Refusal{v1.PodReasonInfeasible, `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`}
}

// capacity refuses requests that would not fit if the pod were alone on the node: waiting does not help.
func capacity(in Input) *Refusal {
	in.Others = nil
	if r := room(in); r != nil {
		return &Refusal{v1.PodReasonInfeasible, r.Message}
	}
	return nil
}
