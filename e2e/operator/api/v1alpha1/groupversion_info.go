// Package v1alpha1 contains the first API of Sites, which is still served.
// +kubebuilder:object:generate=true
// +groupName=web.example.com
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is what these objects are registered as.
	GroupVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion, &Site{}, &SiteList{})
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})

	// AddToScheme adds the types of this version.
	AddToScheme = schemeBuilder.AddToScheme
)
