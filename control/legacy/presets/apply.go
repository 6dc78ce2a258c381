package presets

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// Annotations of pods; their names are part of the API.
const (
	// Exclude, if "true", keeps all presets off a pod.
	Exclude = "podpreset.admission.kubernetes.io/exclude"
	// Applied, followed by the name of a preset, is the annotation with the version of the preset that was applied.
	Applied = "podpreset.admission.kubernetes.io/podpreset-"
)

// Conflict says why a preset does not fit a pod, or the presets before it. It names fields and never their values,
// which may be secret.
type Conflict struct {
	Preset *PodPreset
	Reason string
}

// Wanted reports whether presets apply to a pod: not to static pods, and not to pods with the annotation Exclude.
func Wanted(pod *api.Pod) bool {
	_, mirror := pod.Annotations[api.MirrorPodAnnotationKey]
	return !mirror && pod.Annotations[Exclude] != "true"
}

// Apply merges presets, in their order, into all containers and init containers of a pod. Equal values are no conflict.
// If there is a conflict, the pod is not changed.
func Apply(pod *api.Pod, all []*PodPreset) ([]Conflict, error) {
	spec := pod.Spec.DeepCopy()
	var conflicts []Conflict
	for _, p := range all {
		add, err := p.part()
		if err != nil {
			return nil, err
		}
		m := merge{preset: p, add: add}
		m.volumes(spec)
		for i := range spec.Containers {
			m.container(&spec.Containers[i])
		}
		for i := range spec.InitContainers {
			m.container(&spec.InitContainers[i])
		}
		conflicts = append(conflicts, m.conflicts...)
	}
	if len(conflicts) > 0 || len(all) == 0 {
		return conflicts, nil
	}
	pod.Spec = *spec
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for _, p := range all {
		pod.Annotations[Applied+p.Name] = p.ResourceVersion
	}
	return nil, nil
}

// merge applies one preset to a pod and collects conflicts.
type merge struct {
	preset    *PodPreset
	add       part
	conflicts []Conflict
}

func (m *merge) conflict(format string, args ...any) {
	m.conflicts = append(m.conflicts, Conflict{m.preset, fmt.Sprintf(format, args...)})
}

func (m *merge) volumes(spec *api.PodSpec) {
	have := by(spec.Volumes, func(v api.Volume) string { return v.Name })
	for _, v := range m.add.volumes {
		if old, ok := have[v.Name]; !ok {
			have[v.Name] = v
			spec.Volumes = append(spec.Volumes, v)
		} else if !equality.Semantic.DeepEqual(old, v) {
			m.conflict("there is another volume %q", v.Name)
		}
	}
}

func (m *merge) container(c *api.Container) {
	have := by(c.Env, func(v api.EnvVar) string { return v.Name })
	for _, v := range m.add.env {
		if old, ok := have[v.Name]; !ok {
			have[v.Name] = v
			c.Env = append(c.Env, *v.DeepCopy())
		} else if !equality.Semantic.DeepEqual(old, v) {
			m.conflict("container %q has another value of %s", c.Name, v.Name)
		}
	}
	for _, v := range m.add.envFrom {
		c.EnvFrom = append(c.EnvFrom, *v.DeepCopy())
	}
	m.mounts(c)
}

// mounts adds volume mounts. As in v1.19, a volume or a path that is mounted twice has to be mounted alike.
func (m *merge) mounts(c *api.Container) {
	names := by(c.VolumeMounts, func(v api.VolumeMount) string { return v.Name })
	paths := by(c.VolumeMounts, func(v api.VolumeMount) string { return v.MountPath })
	for _, v := range m.add.mounts {
		named, sameName := names[v.Name]
		there, samePath := paths[v.MountPath]
		switch {
		case sameName && !equality.Semantic.DeepEqual(named, v):
			m.conflict("container %q mounts volume %q in another way", c.Name, v.Name)
		case samePath && !equality.Semantic.DeepEqual(there, v):
			m.conflict("container %q has another mount at %s", c.Name, v.MountPath)
		case !sameName && !samePath:
			names[v.Name], paths[v.MountPath] = v, v
			c.VolumeMounts = append(c.VolumeMounts, *v.DeepCopy())
		}
	}
}

func by[T any](all []T, name func(T) string) map[string]T {
	out := make(map[string]T, len(all))
	for _, v := range all {
		out[name(v)] = v
	}
	return out
}
