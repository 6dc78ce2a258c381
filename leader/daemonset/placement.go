package daemonset

import (
	"maps"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/leader/controllerref"
)

// daemonTolerations let a daemon stay, or start, where other pods may not.
var daemonTolerations = []v1.Toleration{
	{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute},
	{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute},
	{Key: v1.TaintNodeDiskPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule},
	{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule},
	{Key: v1.TaintNodePIDPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule},
	{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule},
}

var hostNetworkToleration = v1.Toleration{Key: v1.TaintNodeNetworkUnavailable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}

func tolerations(spec *v1.PodSpec) []v1.Toleration {
	out := append([]v1.Toleration(nil), spec.Tolerations...)
	add := daemonTolerations
	if spec.HostNetwork {
		add = append(append([]v1.Toleration(nil), add...), hostNetworkToleration)
	}
next:
	for _, t := range add {
		for _, have := range out {
			if have.MatchToleration(&t) {
				continue next
			}
		}
		out = append(out, t)
	}
	return out
}

// fits reports whether the DaemonSet wants a pod on the node, and whether one that is there may stay.
func fits(ds *apps.DaemonSet, node *v1.Node) (run, stay bool) {
	spec := &ds.Spec.Template.Spec
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return false, false
	}
	pod := &v1.Pod{Spec: v1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return false, false
	}
	tolerated := tolerations(spec)
	repelled := func(effects ...v1.TaintEffect) bool {
		_, bad := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, tolerated, func(t *v1.Taint) bool {
			for _, e := range effects {
				if t.Effect == e {
					return true
				}
			}
			return false
		}, false)
		return bad
	}
	if !repelled(v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule) {
		return true, true
	}
	return false, !repelled(v1.TaintEffectNoExecute)
}

// newPod builds the pod for a node.
func newPod(ds *apps.DaemonSet, node, hash string) *v1.Pod {
	p := controllerref.FromTemplate(&ds.Spec.Template, ds, controllerKind)
	p.Labels = maps.Clone(p.Labels)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[apps.ControllerRevisionHashLabelKey] = hash
	if g := ds.Annotations[apps.DeprecatedTemplateGeneration]; g != "" {
		p.Labels["pod-template-generation"] = g
	}
	p.Spec.Tolerations = tolerations(&p.Spec)
	p.Spec.Affinity = pinned(p.Spec.Affinity, node)
	return p
}

// pinned replaces what a node has to be like, which it is known to be, by its name.
func pinned(a *v1.Affinity, node string) *v1.Affinity {
	if a == nil {
		a = &v1.Affinity{}
	}
	if a.NodeAffinity == nil {
		a.NodeAffinity = &v1.NodeAffinity{}
	}
	a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}
	return a
}

// nodeOf is the node a pod runs on or is meant for; empty when it says neither.
func nodeOf(p *v1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == v1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}
