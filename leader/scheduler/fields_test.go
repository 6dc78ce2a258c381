package scheduler

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
)

// TestFieldsOfConstraints has, for each field that refines where a pod goes, a cluster in which the field decides.
func TestFieldsOfConstraints(t *testing.T) {
	zone := func(z string) func(*v1.Node) { return schedulertest.Label(v1.LabelTopologyZone, z) }
	web := schedulertest.Labelled("app", "w")
	spread := func(change func(*v1.TopologySpreadConstraint)) *v1.Pod {
		p := schedulertest.Pod("p", web, schedulertest.Spread("app", "w", v1.LabelTopologyZone, 1, v1.DoNotSchedule))
		change(&p.Spec.TopologySpreadConstraints[0])
		return p
	}
	near := func(change func(*v1.PodAffinityTerm)) *v1.Pod {
		p := schedulertest.Pod("p", schedulertest.Near("app", "w", v1.LabelHostname))
		change(&p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0])
		return p
	}
	weighted := []v1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: v1.PodAffinityTerm{
		TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}},
	}}}
	elsewhere := schedulertest.Pod("q", web, schedulertest.On("b"), func(p *v1.Pod) { p.Namespace = "other" })
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "a"}}}
	two := []runtime.Object{schedulertest.Node("a", "8", "8Gi", zone("1")), schedulertest.Node("b", "8", "8Gi", zone("2"))}
	onA, onB := schedulertest.Pod("q", web, schedulertest.On("a")), schedulertest.Pod("q", web, schedulertest.On("b"))
	tainted := schedulertest.Node("b", "8", "8Gi", zone("2"), schedulertest.Taint("x", v1.TaintEffectNoSchedule))
	for name, c := range map[string]struct {
		pod     *v1.Pod
		objects []runtime.Object
		more    runtime.Object
		want    string
	}{
		"MinDomains: two zones are too few": {spread(func(s *v1.TopologySpreadConstraint) { s.MinDomains = ptr.To[int32](3) }),
			append([]runtime.Object{onA}, two...), schedulertest.Pod("r", web, schedulertest.On("b")), ""},
		"MinDomains: two zones are enough": {spread(func(s *v1.TopologySpreadConstraint) { s.MinDomains = ptr.To[int32](2) }),
			append([]runtime.Object{onA}, two...), nil, "b"},
		"WhenUnsatisfiable: ScheduleAnyway": {spread(func(s *v1.TopologySpreadConstraint) { s.WhenUnsatisfiable = v1.ScheduleAnyway }),
			[]runtime.Object{two[0], tainted}, onA, "a"},
		"NodeTaintsPolicy: Ignore counts the tainted zone": {spread(func(s *v1.TopologySpreadConstraint) { s.NodeTaintsPolicy = ptr.To(v1.NodeInclusionPolicyIgnore) }),
			[]runtime.Object{two[0], tainted}, onA, ""},
		"NodeTaintsPolicy: Honor does not": {spread(func(s *v1.TopologySpreadConstraint) { s.NodeTaintsPolicy = ptr.To(v1.NodeInclusionPolicyHonor) }),
			[]runtime.Object{two[0], tainted}, onA, "a"},
		"NodeAffinityPolicy: Honor counts only the nodes it may use": {func() *v1.Pod {
			p := spread(func(s *v1.TopologySpreadConstraint) { s.NodeAffinityPolicy = ptr.To(v1.NodeInclusionPolicyHonor) })
			p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: "1"}
			return p
		}(), two, onA, "a"},
		"NodeAffinityPolicy: Ignore counts all": {func() *v1.Pod {
			p := spread(func(s *v1.TopologySpreadConstraint) { s.NodeAffinityPolicy = ptr.To(v1.NodeInclusionPolicyIgnore) })
			p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: "1"}
			return p
		}(), two, onA, ""},
		"Namespaces": {near(func(t *v1.PodAffinityTerm) { t.Namespaces = []string{"other"} }), two, elsewhere, "b"},
		"NamespaceSelector": {near(func(t *v1.PodAffinityTerm) {
			t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
		}), append([]runtime.Object{namespace}, two...), elsewhere, "b"},
		"NamespaceSelector of another team": {near(func(t *v1.PodAffinityTerm) {
			t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}
		}), append([]runtime.Object{namespace}, two...), elsewhere, ""},
		"PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, Weight": {schedulertest.Pod("p", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}}
		}), two, onB, "b"},
		"PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, Weight": {schedulertest.Pod("p", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}}
		}), two, onB, "a"},
	} {
		objects := append([]runtime.Object{}, c.objects...)
		if c.more != nil {
			objects = append(objects, c.more)
		}
		got := ""
		if v := testDecider().decide(cycleFor(c.pod, objects...)); v.node != nil {
			got = v.node.Name()
		}
		if got != c.want {
			t.Errorf("%s: the pod goes to %q, want %q", name, got, c.want)
		}
	}
}
