package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SiteSpec is what the owner of a Site wants.
type SiteSpec struct {
	// image of the web server; the operator has a default.
	// +optional
	Image string `json:"image,omitempty"`

	// size is how many pods answer; v1 calls it replicas.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	// +optional
	Size *int32 `json:"size,omitempty"`

	// text is what the site says; v1 calls it message.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Text string `json:"text"`

	// host is the name the site is known by.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Format=hostname
	// +optional
	Host string `json:"host,omitempty"`
}

// SiteStatus is what the operator has seen.
type SiteStatus struct {
	// ready says whether the Site answers requests.
	// +optional
	Ready bool `json:"ready,omitempty"`
}

// Site is a web site in the first version.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=si,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:deprecatedversion:warning="web.example.com/v1alpha1 Site is deprecated; use web.example.com/v1"
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SiteSpec   `json:"spec"`
	Status SiteStatus `json:"status,omitempty"`
}

// SiteList is a list of Sites.
// +kubebuilder:object:root=true
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}
