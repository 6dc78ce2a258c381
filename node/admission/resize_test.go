package admission

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func cpuPod(name, cpu string) *v1.Pod {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	p.Name, p.UID = name, types.UID(name)
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	return p
}

func TestOrderOfResizes(t *testing.T) {
	resize := func(name, from, to string, edit ...func(*v1.Pod)) Resize {
		r := Resize{Asked: cpuPod(name, to), Allocated: cpuPod(name, from)}
		for _, e := range edit {
			e(r.Asked)
		}
		return r
	}
	important := func(p *v1.Pod) { n := int32(10); p.Spec.Priority = &n }
	limited := func(p *v1.Pod) {
		r := &p.Spec.Containers[0].Resources
		r.Requests[v1.ResourceMemory] = resource.MustParse("1Mi")
		r.Limits = r.Requests
	}
	since := func(d time.Duration) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, LastTransitionTime: metav1.NewTime(time.Unix(0, 0).Add(d))}}
		}
	}
	rs := []Resize{
		resize("new", "1", "2"), resize("later", "1", "2", since(time.Hour)), resize("longest", "1", "2", since(time.Minute)),
		resize("guaranteed", "1", "2", limited), resize("important", "1", "2", important), resize("less", "2", "1"),
	}
	SortResizes(rs)
	var got []string
	for _, r := range rs {
		got = append(got, r.Asked.Name)
	}
	if s := strings.Join(got, " "); s != "less important guaranteed longest later new" {
		t.Error(s)
	}
	if !rs[0].Shrinks() || rs[1].Shrinks() {
		t.Error("which resizes give resources back")
	}
}

func TestResizeThatDoesNotFit(t *testing.T) {
	in := Input{Node: testNode(), Others: []*v1.Pod{cpuPod("other", "1500m")}}
	for cpu, want := range map[string]*Refusal{
		"500m": nil,
		"501m": {v1.PodReasonDeferred, "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"},
		"3":    {v1.PodReasonInfeasible, "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
	} {
		in.Pod = cpuPod("p", cpu)
		got := CheckResize(in)
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %+v, want %+v", cpu, got, want)
		}
	}
}

func TestTheCPUOfAGuaranteedPodIsNotChangedWhereCPUsAreExclusive(t *testing.T) {
	with := func(requests, limits string) *v1.Pod {
		list := func(s string) v1.ResourceList {
			cpu, memory, _ := strings.Cut(s, " ")
			return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
		}
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}}}}
	}
	for name, c := range map[string]struct {
		asked, has *v1.Pod
		refused    bool
	}{
		"CPU":       {with("2 1Mi", "2 1Mi"), with("1 1Mi", "1 1Mi"), true},
		"memory":    {with("1 2Mi", "1 2Mi"), with("1 1Mi", "1 1Mi"), false},
		"burstable": {with("2 1Mi", "3 1Mi"), with("1 1Mi", "3 1Mi"), false},
	} {
		if r := CheckPinned(Resize{Asked: c.asked, Allocated: c.has}); (r != nil) != c.refused || r != nil && r.Reason != v1.PodReasonInfeasible {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
