package presets

import (
	"fmt"

	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
)

// Validate finds presets that would make pods invalid, by the rules for pods. Mounts may name volumes of the pods.
func Validate(p *PodPreset) field.ErrorList {
	spec := field.NewPath("spec")
	s := &p.Spec
	var faults field.ErrorList
	// The preset's name becomes part of an annotation's name, which may have 63 characters after the slash.
	if msgs := validation.IsQualifiedName(Applied + p.Name); len(msgs) > 0 {
		faults = append(faults, field.Invalid(field.NewPath("metadata", "name"), p.Name,
			fmt.Sprintf("must fit into the annotation %sNAME of pods, so be no longer than 53 characters", Applied)))
	}
	if len(s.Env)+len(s.EnvFrom)+len(s.Volumes)+len(s.VolumeMounts) == 0 {
		faults = append(faults, field.Required(spec, "give at least one of env, envFrom, volumes, volumeMounts"))
	}
	faults = append(faults, unversioned.ValidateLabelSelector(&s.Selector, unversioned.LabelSelectorValidationOptions{}, spec.Child("selector"))...)
	add, err := p.part()
	if err != nil {
		return append(faults, field.InternalError(spec, err))
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&api.PodSpec{Volumes: add.volumes}, nil, nil, nil)
	volumes, wrong := corevalidation.ValidateVolumes(add.volumes, nil, spec.Child("volumes"), options)
	faults = append(faults, wrong...)
	faults = append(faults, corevalidation.ValidateEnv(add.env, spec.Child("env"), options)...)
	faults = append(faults, corevalidation.ValidateEnvFrom(add.envFrom, spec.Child("envFrom"), options)...)
	for _, m := range add.mounts { // these may be volumes of the pods
		if _, ok := volumes[m.Name]; !ok && m.Name != "" {
			volumes[m.Name] = api.VolumeSource{EmptyDir: &api.EmptyDirVolumeSource{}}
		}
	}
	return append(faults, corevalidation.ValidateVolumeMounts(add.mounts, nil, volumes, &api.Container{}, spec.Child("volumeMounts"), options)...)
}
