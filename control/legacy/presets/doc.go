// Package presets owns PodPresets: what a namespace's administrator wants in every new pod of certain labels (environment,
// volumes, mounts). Kubernetes had the kind as settings.k8s.io/v1alpha1 until v1.19, whose behaviour this is.
//
//	Definition  the CustomResourceDefinition by which the API serves the kind
//	Decode      a stored or received object ──▶ PodPreset
//	Validate    what its schema cannot say
//	Apply       pod × presets ──▶ the pod with all of them, or untouched and the conflicts
//
// Everything is a function of values; control/auth/admission has the plug-in that asks them, control installs the
// definition, both when control.Config.PodPresets is set.
package presets
