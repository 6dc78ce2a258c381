package presets

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // defaults and conversion of pods
)

// The names of PodPresets in the API.
var (
	Resource = schema.GroupVersionResource{Group: "settings.k8s.io", Version: "v1alpha1", Resource: "podpresets"}
	Kind     = schema.GroupVersionKind{Group: Resource.Group, Version: Resource.Version, Kind: "PodPreset"}
)

// PodPreset is settings.k8s.io/v1alpha1 PodPreset, which k8s.io/api no longer has.
type PodPreset struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec `json:"spec"`
}

// Spec selects pods of the namespace, and says what each of their containers gets.
type Spec struct {
	// Selector selects pods by their labels. An empty selector selects all.
	Selector     metav1.LabelSelector   `json:"selector"`
	Env          []corev1.EnvVar        `json:"env,omitempty"`
	EnvFrom      []corev1.EnvFromSource `json:"envFrom,omitempty"`
	Volumes      []corev1.Volume        `json:"volumes,omitempty"`
	VolumeMounts []corev1.VolumeMount   `json:"volumeMounts,omitempty"`
}

// Decode reads a preset's JSON.
func Decode(text []byte) (*PodPreset, error) {
	p := &PodPreset{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("presets: %w", err)
	}
	return p, nil
}

// Selects reports whether the preset is for a pod of these labels.
func (p *PodPreset) Selects(pod map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.Selector)
	if err != nil {
		return false, fmt.Errorf("presets: selector of %s/%s: %w", p.Namespace, p.Name, err)
	}
	return selector.Matches(labels.Set(pod)), nil
}

// part is the content of a preset, defaulted as in a pod.
type part struct {
	volumes []api.Volume
	env     []api.EnvVar
	envFrom []api.EnvFromSource
	mounts  []api.VolumeMount
}

func (p *PodPreset) part() (part, error) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Volumes:    p.Spec.Volumes,
		Containers: []corev1.Container{{Env: p.Spec.Env, EnvFrom: p.Spec.EnvFrom, VolumeMounts: p.Spec.VolumeMounts}},
	}}
	pod = pod.DeepCopy() // defaults are written into it, and the conversion shares its memory
	legacyscheme.Scheme.Default(pod)
	internal := &api.Pod{}
	if err := legacyscheme.Scheme.Convert(pod, internal, nil); err != nil {
		return part{}, fmt.Errorf("presets: %s/%s: %w", p.Namespace, p.Name, err)
	}
	c := internal.Spec.Containers[0]
	return part{internal.Spec.Volumes, c.Env, c.EnvFrom, c.VolumeMounts}, nil
}
