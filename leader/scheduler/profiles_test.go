package scheduler

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
)

func selecting(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// prefer has a pod prefer nodes with a label.
func prefer(key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight: 100, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}},
		}}}}
	}
}

func configured(t *testing.T, profileText string) *decider {
	t.Helper()
	s, err := profile.Parse([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- " + profileText))
	if err != nil {
		t.Fatal(err)
	}
	return newDecider(s.Profiles[0], rand.New(rand.NewPCG(1, 2)))
}

// TestSettingsOfProfilesDecide has, for every setting, a choice that it changes: nodes "used" and "free", a pod, and where
// it goes with and without the setting; "" is nowhere.
func TestSettingsOfProfilesDecide(t *testing.T) {
	used := schedulertest.Node("used", "4", "8Gi", schedulertest.Label("zone", "a"))
	free := schedulertest.Node("free", "4", "8Gi", schedulertest.Label("zone", "b"))
	running := schedulertest.Pod("running", schedulertest.Requests("2", "4Gi"), schedulertest.On("used"), schedulertest.Labelled("app", "x"), func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: "zone", LabelSelector: selecting("app", "y"),
		}}}}
	})
	small := schedulertest.Pod("small", schedulertest.Requests("1", "2Gi"))
	for _, c := range []struct {
		name, profile string
		pod           *v1.Pod
		without, with string
	}{
		{"most allocated", "pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]\n  plugins: {score: {enabled: [{name: NodeResourcesFit, weight: 10}]}}", small, "free", "used"},
		{"ratio", "pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}}}]", small, "free", "used"},
		{"required affinity for all", "pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}}]", small, "free", "used"},
		{"preferred affinity for all", "pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}]}}}]", small, "free", "used"},
		{"weight of others' required terms", "pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 0}}]", schedulertest.Pod("y", schedulertest.Requests("1", "2Gi"), schedulertest.Labelled("app", "y")), "used", "free"},
		{"a filter is off", "plugins: {filter: {disabled: [{name: NodeResourcesFit}]}, score: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity}]}}", schedulertest.Pod("large", schedulertest.Requests("64", "2Gi"), prefer("zone", "b")), "", "free"},
		{"resources that another program counts", "pluginConfig: [{name: NodeResourcesFit, args: {ignoredResourceGroups: [example.com]}}]", schedulertest.Pod("gpu", schedulertest.Requests("1", "2Gi"), func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]
		}), "", "free"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for text, want := range map[string]string{"schedulerName: default-scheduler\n": c.without, c.profile + "\n": c.with} {
				v := configured(t, text).decide(cycleFor(c.pod, used, free, running))
				got := ""
				if v.node != nil {
					got = v.node.Name()
				}
				if got != want {
					t.Errorf("with %q the pod goes to %q, want %q", text, got, want)
				}
			}
		})
	}
}

// TestDefaultConstraintsBindPodsOfServices: the zone that has a pod of the service more than the other may not have one more.
func TestDefaultConstraintsBindPodsOfServices(t *testing.T) {
	service := &v1.Service{Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	service.Namespace, service.Name = "default", "web"
	web := schedulertest.Labelled("app", "web")
	full := schedulertest.Node("a", "4", "8Gi", schedulertest.Label("zone", "a"))
	none := schedulertest.Node("b", "1", "8Gi", schedulertest.Label("zone", "b"))
	c := cycleFor(schedulertest.Pod("new", web, schedulertest.Requests("2", "1Gi")), full, none, service, schedulertest.Pod("old", web, schedulertest.On("a")))
	text := "pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: %s}]}}]\n"
	if v := configured(t, fmt.Sprintf(text, "DoNotSchedule")).decide(c); v.node != nil || !strings.Contains(v.explain(2), "topology spread") {
		t.Errorf("the pod goes to %v: %s", v.node, v.explain(2))
	}
	if v := configured(t, fmt.Sprintf(text, "ScheduleAnyway")).decide(c); v.node == nil || v.node.Name() != "a" {
		t.Errorf("the pod goes to %v, want a", v.node)
	}
}

// TestEachProfileHasItsPods: pods go by the profile of their schedulerName, and pods of no profile are left alone.
func TestEachProfileHasItsPods(t *testing.T) {
	packer, err := profile.Parse([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: default-scheduler\n- schedulerName: lax\n  plugins: {filter: {disabled: [{name: NodeResourcesFit}]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := startWith(t, packer, schedulertest.Node("n", "1", "1Gi"))
	as := func(name string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.SchedulerName = name } }
	w.add(schedulertest.Pod("theirs", as("other")))
	w.add(schedulertest.Pod("strict", schedulertest.Requests("8", "1Mi")))
	w.add(schedulertest.Pod("loose", as("lax"), schedulertest.Requests("8", "1Mi")))
	w.eventually("bound by its profile", func() bool { return len(w.nodes("loose")) == 1 })
	w.eventually("refused by its profile", func() bool { return len(w.get("strict").Status.Conditions) == 1 })
	if len(w.nodes("theirs"))+len(w.nodes("strict")) != 0 {
		t.Error("a pod was bound against its profile, or without one")
	}
}
