// Package presets owns PodPresets: environment, volumes and mounts that a namespace's administrator adds to every new
// pod with certain labels. Kubernetes had the kind as settings.k8s.io/v1alpha1 until v1.19; the behaviour here is the
// same.
//
//	Definition  the CustomResourceDefinition by which the API serves the kind
//	Decode      a stored or received object ──▶ PodPreset
//	Validate    the rules that its schema cannot express
//	Apply       pod × presets ──▶ the pod with all of them, or untouched and the conflicts
//
// Everything is a function of values. The plug-in in control/auth/admission calls it, and package control installs the
// definition, both if control.Config.PodPresets is set.
package presets
