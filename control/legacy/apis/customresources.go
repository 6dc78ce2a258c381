package apis

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// approval is the annotation without which v1 refuses definitions in the groups of Kubernetes. The reason "unapproved"
// is upstream's own for definitions of others.
const approval, unapproved = apiextensionsv1.KubeAPIApprovedAnnotation, "unapproved, defined by apiextensions.k8s.io/v1beta1"

// completeDefinition adds to a definition, of the internal version, what v1 demands and v1beta1 did not: a schema for each version, which
// keeps unknown fields where the definition keeps them, and the annotation of protected groups.
func completeDefinition(s *runtime.Scheme, o runtime.Object) (runtime.Object, error) {
	converted, err := s.ConvertToVersion(o, apiextensionsv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	crd, ok := converted.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("a definition was converted to %T", converted)
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			v.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: ptr.To(true)}}
		}
		root := v.Schema.OpenAPIV3Schema
		if root.Type == "" {
			root.Type = "object"
		}
		if crd.Spec.PreserveUnknownFields {
			root.XPreserveUnknownFields = ptr.To(true)
		}
	}
	crd.Spec.PreserveUnknownFields = false
	if protected(crd.Spec.Group) && crd.Annotations[approval] == "" {
		if crd.Annotations == nil {
			crd.Annotations = map[string]string{}
		}
		crd.Annotations[approval] = unapproved
	}
	return crd, nil
}

// protected tells whether a group is one of Kubernetes' own.
func protected(group string) bool {
	for _, domain := range []string{"k8s.io", "kubernetes.io"} {
		if group == domain || strings.HasSuffix(group, "."+domain) {
			return true
		}
	}
	return false
}
