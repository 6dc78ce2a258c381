package statefulset

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/leader/controllerref"
)

var (
	controllerKind = apps.SchemeGroupVersion.WithKind("StatefulSet")
	podKind        = v1.SchemeGroupVersion.WithKind("Pod")
)

func podName(set *apps.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

// ordinalOf is the number in a pod's name, or -1 when the name is not of this set's making.
func ordinalOf(set *apps.StatefulSet, p *v1.Pod) int {
	n, ok := strings.CutPrefix(p.Name, set.Name+"-")
	if !ok {
		return -1
	}
	i, err := strconv.Atoi(n)
	if err != nil || i < 0 || podName(set, i) != p.Name {
		return -1
	}
	return i
}

func firstOrdinal(set *apps.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func replicas(set *apps.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

func wanted(set *apps.StatefulSet, ordinal int) bool {
	return ordinal >= firstOrdinal(set) && ordinal < firstOrdinal(set)+replicas(set)
}

func claimName(set *apps.StatefulSet, template string, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template, set.Name, ordinal)
}

// newPod builds the pod of an ordinal from a revision's template.
func newPod(set *apps.StatefulSet, template *v1.PodTemplateSpec, revision string, ordinal int) *v1.Pod {
	p := controllerref.FromTemplate(template, set, controllerKind)
	p.GenerateName, p.Name = "", podName(set, ordinal)
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, set.Spec.ServiceName
	identify(set, p, ordinal)
	p.Labels[apps.StatefulSetRevisionLabel] = revision
	return p
}

// identify gives a pod the labels and volumes of its ordinal.
func identify(set *apps.StatefulSet, p *v1.Pod, ordinal int) {
	p.Labels = maps.Clone(p.Labels)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[apps.StatefulSetPodNameLabel] = p.Name
	p.Labels[apps.PodIndexLabel] = strconv.Itoa(ordinal)
	mine := map[string]bool{}
	var volumes []v1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		mine[name] = true
		volumes = append(volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, name, ordinal)},
		}})
	}
	for _, v := range p.Spec.Volumes {
		if !mine[v.Name] {
			volumes = append(volumes, v)
		}
	}
	p.Spec.Volumes = volumes
}

// identified reports whether a pod carries the labels of its ordinal.
func identified(p *v1.Pod, ordinal int) bool {
	return p.Labels[apps.StatefulSetPodNameLabel] == p.Name && p.Labels[apps.PodIndexLabel] == strconv.Itoa(ordinal)
}

// claims returns the claims that the pod of an ordinal needs, by the set's templates.
func claims(set *apps.StatefulSet, ordinal int) []*v1.PersistentVolumeClaim {
	var out []*v1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		c := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = claimName(set, c.Name, ordinal), set.Namespace
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		c.Status = v1.PersistentVolumeClaimStatus{}
		out = append(out, c)
	}
	return out
}

// claimOwners returns a claim's owner references by the retention policy: the set owns the claim if it must be deleted with the
// set, the pod if it must be deleted because the set was scaled down below it. pod may be nil when there is none.
func claimOwners(set *apps.StatefulSet, pod *v1.Pod, ordinal int, have []metav1.OwnerReference) []metav1.OwnerReference {
	whenDeleted, whenScaled := apps.RetainPersistentVolumeClaimRetentionPolicyType, apps.RetainPersistentVolumeClaimRetentionPolicyType
	if p := set.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		whenDeleted, whenScaled = p.WhenDeleted, p.WhenScaled
	}
	const remove = apps.DeletePersistentVolumeClaimRetentionPolicyType
	out := slices.DeleteFunc(slices.Clone(have), func(r metav1.OwnerReference) bool {
		return r.UID == set.UID || r.APIVersion == "v1" && r.Kind == podKind.Kind && r.Name == podName(set, ordinal)
	})
	for _, r := range out {
		if r.Controller != nil && *r.Controller {
			return out // another controller owns the claim
		}
	}
	switch scaledDown := !wanted(set, ordinal); {
	case scaledDown && whenScaled == remove && pod != nil:
		out = append(out, *metav1.NewControllerRef(pod, podKind))
	case !(scaledDown && whenScaled == remove) && whenDeleted == remove:
		out = append(out, *metav1.NewControllerRef(set, controllerKind))
	}
	return out
}
