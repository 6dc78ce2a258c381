package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// Finalizer is held while a Site stands in the directory.
	Finalizer = "web.example.com/directory"
	// ProtectedAnnotation with the value "true" forbids deletion.
	ProtectedAnnotation = "web.example.com/protected"

	// ConditionAvailable says whether the Site answers requests.
	ConditionAvailable = "Available"
)

// SiteSpec is what the owner of a Site wants.
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || self.replicas <= self.maxReplicas",message="replicas may not be above maxReplicas"
type SiteSpec struct {
	// image of the web server; the operator has a default.
	// +optional
	Image string `json:"image,omitempty"`

	// replicas is how many pods answer.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// maxReplicas limits replicas, whoever scales.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`

	// message is what the site says.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Message string `json:"message"`

	// host is the name the site is known by, one Site each. Without one it is
	// made of the Site's name and namespace. It cannot be changed.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Format=hostname
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="host cannot be changed"
	// +optional
	Host string `json:"host,omitempty"`

	// port of the Service.
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// env is added to the web server's variables.
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
}

// SiteStatus is what the operator has seen.
type SiteStatus struct {
	// observedGeneration is the generation that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the Site; "Available" is one.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// replicas is how many pods there are.
	// +optional
	Replicas int32 `json:"replicas"`

	// selector of the pods, for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`

	// url answers inside the cluster.
	// +optional
	URL string `json:"url,omitempty"`
}

// Site is a web site: pods, a Service, and a line in the directory.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=si,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:selectablefield:JSONPath=`.spec.host`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.host`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SiteSpec   `json:"spec"`
	Status SiteStatus `json:"status,omitempty"`
}

// Hub marks this version as the one that others are converted to and from.
func (*Site) Hub() {}

// SiteList is a list of Sites.
// +kubebuilder:object:root=true
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}
